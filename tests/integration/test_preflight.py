"""``echorl preflight`` with a real trainer and a real vLLM engine."""

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from echorl_testing import campaign
from echorl_testing.local.local_run import longer_run
from echorl_testing.warm import Program
from echorl_trainer.seeded import SHAPES, write_seeded_model

REPOSITORY = Path(__file__).parents[2]
FAILING = ["check", "engine", "trainer"]


@pytest.fixture
def temporary():
    """A folder for temporary files whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="e"))
    yield folder
    shutil.rmtree(folder)


@dataclass
class Ended:
    """A preflight."""

    returncode: int
    stdout: str
    stderr: str


def preflight(
    folder, temporary, *arguments, lora="{rank: 4, alpha: 16, targetModules: [q_proj, down_proj]}", **environment
):
    document = yaml.safe_load((REPOSITORY / "examples" / "lora.yaml").read_text())
    document["spec"]["model"] |= {"name": str(folder / "model"), "maxModelLen": 256, "lora": yaml.safe_load(lora)}
    (folder / "run.yaml").write_text(yaml.safe_dump(document))
    if not (folder / "model").exists():
        write_seeded_model(folder / "model", SHAPES["tiny"], 1)
    files = {"output": folder / "out", "errors": folder / "err"}
    variables = {**os.environ, "TMPDIR": str(temporary), **environment}
    arguments = ["preflight", folder / "run.yaml", *arguments]
    code = Program("echorl_cli", arguments, environment=variables, folder=REPOSITORY, **files).ended(500)
    return Ended(code, files["output"].read_text(), files["errors"].read_text())


@longer_run("preflight")
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


def engine(folder, *lines):
    """The Python of an engines' environment in which the engine is these lines."""
    script = folder / "python"
    script.write_text("\n".join([f"#!{sys.executable}", "import sys", "from pathlib import Path", *lines]))
    script.chmod(0o755)
    return {"ECHORL_INFERENCE_PYTHON": str(script), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def recommends(ended):
    return "\nrecommended: two pools of engines, one that serves the adapter and one without adapters" in ended.stderr


@campaign.campaign_mark("preflights", FAILING, 1, "check")
@pytest.mark.timeout(300)
def test_a_check_that_fails_ends_with_1_and_recommends_two_pools(tmp_path, temporary):
    lines = (
        "from echorl_testing.engines.adapter_server import main",
        "main(Path(sys.argv[sys.argv.index('--config') + 1]), 'open')",
    )
    ended = preflight(tmp_path, temporary, **engine(tmp_path, *lines))
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("one step trained, gradient norm ")
    assert "failed: before version 0 a request for policy got HTTP 200, accepted is 409\n" in ended.stderr
    assert recommends(ended)
    [kept] = temporary.glob("echorl-preflight-*")
    assert f"\nlogs: {kept}\n" in ended.stderr
    assert {"trainer.log", "inference.log"} <= {path.name for path in kept.iterdir()}


@campaign.campaign_mark("preflights", FAILING, 1, "engine")
@pytest.mark.timeout(300)
def test_an_engine_that_does_not_start_ends_with_1_and_recommends_two_pools(tmp_path, temporary):
    ended = preflight(tmp_path, temporary, **engine(tmp_path, "sys.exit('no adapters of this rank')"))
    assert ended.returncode == 1, ended.stderr
    assert "the engine ended with code 1:\n" in ended.stderr
    assert "no adapters of this rank" in ended.stderr
    assert recommends(ended)


@campaign.campaign_mark("preflights", FAILING, 1, "trainer")
@pytest.mark.timeout(300)
def test_a_trainer_that_fails_ends_with_its_code_and_recommends_nothing(tmp_path, temporary):
    write_seeded_model(tmp_path / "model", SHAPES["tiny"], 1)
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"].fill_(float("nan"))
    save_file(tensors, weights, metadata={"format": "pt"})
    ended = preflight(tmp_path, temporary, **engine(tmp_path, "sys.exit('is never started')"))
    assert ended.returncode == 2, ended.stderr
    assert "the trainer ended with code 2:\n" in ended.stderr
    assert "holds values that are not finite: model.norm.weight" in ended.stderr
    assert not recommends(ended)
    assert "is never started" not in ended.stderr


@pytest.mark.parametrize("swaps", ["4", "-3"])
def test_too_few_swaps_are_refused(tmp_path, temporary, swaps):
    ended = preflight(tmp_path, temporary, "--swaps", swaps)
    assert ended.returncode == 2
    assert "--swaps" in ended.stderr
    assert f"found {swaps}, accepted is at least 5" in ended.stderr
    assert not list(temporary.iterdir())
