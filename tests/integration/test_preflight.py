"""``echorl preflight`` with a real trainer and a real vLLM engine."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from echorl_trainer.seeded import SHAPES, write_seeded_model

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def temporary():
    """A folder for temporary files whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="e"))
    yield folder
    shutil.rmtree(folder)


def preflight(folder, temporary, *arguments, lora="{rank: 4, alpha: 16, targetModules: [q_proj, down_proj]}"):
    document = yaml.safe_load((REPOSITORY / "examples" / "lora.yaml").read_text())
    document["spec"]["model"] |= {"name": str(folder / "model"), "maxModelLen": 256, "lora": yaml.safe_load(lora)}
    (folder / "run.yaml").write_text(yaml.safe_dump(document))
    if not (folder / "model").exists():
        write_seeded_model(folder / "model", SHAPES["tiny"], 1)
    return subprocess.run(
        [sys.executable, "-m", "echorl_cli", "preflight", folder / "run.yaml", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_an_adapter_that_works_passes_every_check(tmp_path, temporary):
    # How long requests take on a busy machine is no matter of this test.
    ended = preflight(tmp_path, temporary, "--max-slowdown", "100")
    assert ended.returncode == 0, ended.stderr
    assert [line.partition(":")[0].partition(",")[0] for line in ended.stdout.splitlines() if "times" not in line] == [
        "one step trained",
        "version 0 is the model itself",
        "version 1",
        "5 swaps took effect",
        "8 requests for the adapter and 8 for the base at once",
        "lora",
    ]
    assert not list(temporary.glob("echorl-preflight-*"))


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("null", "spec.model.lora"),
        (
            "{targetModules: [q_proj, absent]}",
            'targetModules: found "absent"; accepted: names of linear layers: down_proj, ',
        ),
        ("{rank: 513}", "spec.model.lora.rank"),
    ],
)
def test_bad_input_starts_nothing(tmp_path, temporary, lora, message):
    ended = preflight(tmp_path, temporary, lora=lora)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not list(temporary.glob("echorl-preflight-*"))
