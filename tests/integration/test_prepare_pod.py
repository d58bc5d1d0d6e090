"""The prepare pod as a process, against a run directory on disk and a hub at the wire."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echorl_cli.local import proctable
from echorl_core import checkpoints
from echorl_core.attempts import claim_run, read_prepared
from echorl_core.checkpoints import CheckpointManifest
from echorl_core.config import (
    EchoConfig,
    EchoRoleConfig,
    EnvironmentConfig,
    HookConfig,
    ModelConfig,
    ModelSource,
    PrepareConfig,
    TrainerConfig,
)
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory, write_folder
from echorl_core.termination_message import SavedCheckpoint, TerminationMessage, read
from echorl_testing.local.fake_hub import FakeHub
from echorl_testing.manifests.role_config import orchestrator_config
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer
from echorl_testing.warm import Program

COMMIT, LATER = "c" * 40, "d" * 40
NAME = "org/Tiny"
SECRET = "hub-s3cret-token"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_byte_tokenizer(tmp_path_factory.mktemp("model"))
    config = {"max_position_embeddings": 64, "model_type": "llama", "num_attention_heads": 6}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    more = {"pytorch_model.bin": b"pickle", "original/model.safetensors": b"other", "modeling.py": b"code"}
    with FakeHub(NAME, {**files, **more}, commit=COMMIT) as hub:
        yield hub


@dataclass
class Ended:
    code: int
    words: TerminationMessage
    out: str
    err: str


class Volume:
    """One run's volume, and the pods that prepare its attempts."""

    def __init__(self, root: Path, hub: FakeHub) -> None:
        self.root, self.hub = root, hub
        self.run = RunDirectory(root / "volume" / "runs" / "tiny")
        self.link, self.store = self.run.root / "model", root / "volume" / "models"
        self.elsewhere = root / "elsewhere"
        self.elsewhere.mkdir()

    def config(
        self,
        *,
        model: ModelSource | None = None,
        python_path: tuple[str, ...] = (),
        context: int = 1,
        expert: int = 1,
        **fields: Any,
    ) -> None:
        # As the orchestrator's pod sees it, which is not as this one does.
        seen = ModelConfig(path=f"/models/{NAME}", dtype="float32", max_model_len=64, renderer="compact")
        orchestrator = orchestrator_config(self.run.root, **{"model": seen, **fields})
        trainer = TrainerConfig(
            run_dir=str(self.run.root),
            orchestrator_url="http://orchestrator:1",
            model=orchestrator.model,
            seed=0,
            max_steps=1,
            seq_len=64,
            context=context,
            expert=expert,
            weight_mode="http",
        )
        source = ModelSource(name=NAME, revision="main", path=str(self.link), store=str(self.store))
        config = PrepareConfig(
            run_dir=str(self.run.root),
            model=model or source,
            python_path=list(python_path),
            orchestrator=orchestrator,
            trainer=trainer,
        )
        config.dump(self.root / "prepare.json")

    def start(self, attempt: int = 1, *arguments: str, uid: str = "uid", **environment: str) -> Program:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ECHORL_", "HF_"))}
        own = {
            "ECHORL_RUN_NAME": "tiny",
            "ECHORL_RUN_UID": uid,
            "ECHORL_ATTEMPT": str(attempt),
            "ECHORL_TERMINATION_LOG": str(self.root / "words"),
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.root / "home"),
        }
        for file in ("words", "out", "err"):
            (self.root / file).unlink(missing_ok=True)
        return Program(
            "echorl_prepare.__main__",
            ["--config", self.root / "prepare.json", *arguments],
            environment={**inherited, **own, **environment},
            output=self.root / "out",
            errors=self.root / "err",
            folder=self.elsewhere,
            anew=["huggingface_hub"],
        )

    def prepare(self, attempt: int = 1, *arguments: str, uid: str = "uid", **environment: str) -> Ended:
        process = self.start(attempt, *arguments, uid=uid, **environment)
        code = process.ended(240)
        out, err = ((self.root / file).read_text() for file in ("out", "err"))
        words = read((self.root / "words").read_bytes())
        assert words is not None
        assert words.exit_code == code, err
        assert (words.role, words.attempt) == ("prepare", attempt)
        return Ended(code, words, out, err)

    def commit(self, step: int, *, attempt: int = 1, uid: str = "uid") -> Path:
        folder = self.run.checkpoint(step)
        file = folder / f"attempt_{attempt}" / "trainer" / "rank_0.bin"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"weights of step %d" % step)
        manifest = CheckpointManifest(
            run_uid=uid,
            attempt=attempt,
            step=step,
            policy_version=step,
            num_ranks=1,
            committed_at="2026-01-01T00:00:00+00:00",
            history=checkpoints.NO_HISTORY,
            parts=[checkpoints.part_of(folder, file, "trainer", 0)],
        )
        checkpoints.write_manifest(folder, manifest)
        return file


@pytest.fixture
def volume(tmp_path: Path, hub: FakeHub) -> Volume:
    volume = Volume(tmp_path, hub)
    volume.config()
    return volume


def test_a_model_is_fetched_once_and_linked(volume: Volume, files: dict[str, bytes]) -> None:
    first = volume.prepare()
    assert first.code == ExitCode.OK, first.err
    done = first.words.prepared
    assert done is not None
    folder = volume.store / f"org--Tiny@{COMMIT}"
    assert (done.resume_step, done.model_commit, done.model_path) == (0, COMMIT, str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files, "weights as safetensors alone"
    assert volume.link.readlink() == Path("../../models") / folder.name
    assert (volume.link / "config.json").is_file()
    assert first.words.message == "starting at step 0"
    assert first.out.splitlines()[-1] == "starting at step 0"
    asked = len(volume.hub.requests)
    assert volume.hub.fetched() == sorted(files)
    second = volume.prepare()
    assert (second.code, second.words) == (0, first.words)
    assert len(volume.hub.requests) == asked, "the hub is not asked again"


def test_a_run_keeps_its_commit_when_the_branch_moves_on(volume: Volume) -> None:
    assert volume.prepare().code == 0
    volume.hub.refs["main"] = volume.hub.commit = LATER
    assert volume.prepare(2).words.prepared.model_commit == COMMIT  # type: ignore[union-attr]
    shutil.rmtree(volume.run.root)
    found = volume.prepare(1, uid="another")
    assert found.words.prepared is not None
    assert found.words.prepared.model_commit == LATER


def test_a_commit_that_is_in_the_store_needs_no_hub(volume: Volume, tmp_path: Path) -> None:
    assert volume.prepare().code == 0
    shutil.rmtree(volume.run.root)
    source = ModelSource(name=NAME, revision=COMMIT, path=str(volume.link), store=str(volume.store))
    volume.config(model=source)
    volume.hub.status = 503
    assert volume.prepare().code == 0


def test_a_hub_that_is_away_is_another_try_and_an_older_run_may_do(volume: Volume) -> None:
    volume.hub.status = 503
    away = volume.prepare()
    assert away.code == ExitCode.CRASH
    assert away.words.message == "the hub answered 503 for org/Tiny@main"
    assert read_prepared(volume.run, 1) is None
    volume.hub.status = None
    assert volume.prepare().code == 0
    volume.hub.status = 503
    later = volume.prepare(1, "--on-existing", "Archive", uid="another")
    assert later.code == 0, later.err
    assert f"stays at commit {COMMIT}, which was fetched before" in later.out


def test_a_download_that_breaks_off_leaves_nothing_that_passes_for_a_model(volume: Volume) -> None:
    volume.hub.broken = {"model.safetensors"}
    broken = volume.prepare()
    assert broken.code == ExitCode.CRASH
    assert not (volume.store / f"org--Tiny@{COMMIT}").exists()
    volume.hub.broken = set()
    assert volume.prepare().code == 0


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/Nope", "main", "spec.model.name: found org/Nope, which the hub does not know"),
        (NAME, "v9", "spec.model.revision: found v9, which org/Tiny does not have"),
        ("org/a--b", "main", "spec.model.name: found org/a--b"),
    ],
)
def test_a_model_that_the_hub_does_not_have(volume: Volume, name: str, revision: str, message: str) -> None:
    volume.config(model=ModelSource(name=name, revision=revision, path=str(volume.link), store=str(volume.store)))
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert found.words.message.startswith(message)
    assert found.err.strip().endswith(found.words.message)


def test_a_private_model_needs_the_token_which_stays_secret(volume: Volume) -> None:
    volume.hub.token = SECRET
    assert volume.prepare().code == ExitCode.BAD_INPUT
    found = volume.prepare(HF_TOKEN=SECRET)
    assert found.code == 0, found.err
    said = found.out + found.err + (volume.root / "words").read_text()
    assert SECRET not in said
    assert not [path for path in volume.run.root.rglob("*") if path.is_file() and SECRET in path.read_text()]


def test_all_problems_are_told_at_once_and_nothing_is_changed(volume: Volume, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(
        "import os\nassert 'HF_TOKEN' not in os.environ, 'the token is not for users'\ndef make(): ...\nnumber = 3\n"
    )
    hook = EchoConfig(tool=EchoRoleConfig(alpha=0.1), filter=HookConfig(import_path="mine:absent"))
    train = [
        EnvironmentConfig(name="a", type="import:mine:make"),
        EnvironmentConfig(name="b", type="import:mine:number", echo=hook),
        EnvironmentConfig(name="c", type="import:nowhere:make"),
    ]
    long = ModelConfig(path=f"/models/{NAME}", dtype="float32", max_model_len=65, renderer="compact")
    volume.config(python_path=(str(code),), train=train, evals=[], model=None)
    config = json.loads((volume.root / "prepare.json").read_text())
    config["orchestrator"]["model"] = long.model_dump()
    (volume.root / "prepare.json").write_text(json.dumps(config))
    write_folder(volume.run.batch(1), {"seal.json": b"{}"})
    found = volume.prepare(HF_TOKEN=SECRET)
    assert found.code == ExitCode.BAD_INPUT
    lines = found.words.message.splitlines()
    assert lines[0] == "spec.model.maxModelLen: found 65; accepted: at most 64 (max_position_embeddings of the model)"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "spec.environments.train[1].type",
        "spec.environments.train[1].echo.filter.import",
        "spec.environments.train[2].type",
    ]
    assert "mine:number: is a int, and cannot be called" in lines[1]
    assert f"pkg.module:name that can be imported (with {code} on sys.path)" in lines[3]
    assert read_prepared(volume.run, 1) is None
    assert volume.run.sealed_steps()


def test_a_folder_of_user_code_that_is_not_there(volume: Volume) -> None:
    volume.config(python_path=(str(volume.root / "nowhere"),))
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert found.words.message.startswith(f"spec.code.path: found {volume.root / 'nowhere'}, which is no folder")


def test_modules_of_the_working_folder_do_not_count(volume: Volume) -> None:
    (volume.elsewhere / "near.py").write_text("def make(): ...\n")
    volume.config(train=[EnvironmentConfig(name="a", type="import:near:make")])
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert "No module named 'near'" in found.words.message


def test_a_renderer_that_does_not_fit(volume: Volume) -> None:
    model = ModelConfig(path=f"/models/{NAME}", dtype="float32", max_model_len=64, renderer="auto")
    config = json.loads((volume.root / "prepare.json").read_text())
    config["orchestrator"]["model"] = model.model_dump()
    (volume.root / "prepare.json").write_text(json.dumps(config))
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert found.words.message.startswith("spec.model.renderer: model.renderer: 'auto' does not know the model of org/")
    assert "'Tiny'" in found.words.message


def test_a_model_that_is_a_path(volume: Volume, files: dict[str, bytes]) -> None:
    folder = volume.root / "volume" / "mine"
    volume.config(model=ModelSource(name="/mine", path=str(folder)))
    missing = volume.prepare()
    assert missing.words.message == (
        "spec.model.name: found /mine: no such folder; accepted: a folder of the run's volume, or a hub id"
    )
    write_folder(folder, {name: data for name, data in files.items() if name != "tokenizer.json"})
    (folder / "tokenizer_config.json").unlink()
    assert "without a tokenizer" in volume.prepare().words.message
    write_folder(folder, files)
    volume.config(model=ModelSource(name="/mine", path=str(folder)), context=4)
    accepted = "a divisor of the model's 6 attention heads"
    assert volume.prepare().words.message == f"spec.trainer.parallel.context: found 4; accepted: {accepted}"
    volume.config(model=ModelSource(name="/mine", path=str(folder)), expert=2)
    accepted = "1: the model has no experts"
    assert volume.prepare().words.message == f"spec.trainer.parallel.expert: found 2; accepted: {accepted}"
    volume.config(model=ModelSource(name="/mine", path=str(folder)), context=3)
    found = volume.prepare()
    assert found.code == 0, found.err
    assert found.words.prepared is not None
    assert (found.words.prepared.model_path, found.words.prepared.model_commit) == (str(folder), None)
    assert volume.hub.requests == []
    assert not volume.link.exists()


def test_it_resumes_cleans_and_says_so(volume: Volume) -> None:
    assert volume.prepare().code == 0
    for step in (2, 4):
        volume.commit(step)
    volume.commit(6).write_bytes(b"damaged")
    for step in range(5, 15):
        write_folder(volume.run.batch(step), {"seal.json": b"{}"})
    found = volume.prepare(2)
    assert found.code == 0, found.err
    done = found.words.prepared
    assert done is not None
    assert (done.resume_step, done.checkpoint, found.words.step) == (4, "checkpoints/step_000004", 4)
    assert [one.step for one in done.committed] == [4, 2]
    size = len(b"weights of step 4")
    assert done.committed[0] == SavedCheckpoint(step=4, committed_at="2026-01-01T00:00:00+00:00", size_bytes=size)
    assert (done.skipped_count, done.skipped[0].step) == (1, 6)
    assert "bytes, 17 were committed" in done.skipped[0].reason
    assert (done.removed_count, done.removed[0]) == (10, "batches/step_000005")
    assert len((volume.root / "words").read_bytes()) <= 4096
    assert "skipped checkpoint 6: " in found.out
    again = volume.prepare(2)
    assert again.words == found.words


def test_going_back_and_starting_anew(volume: Volume) -> None:
    assert volume.prepare().code == 0
    volume.commit(2)
    volume.commit(4)
    back = volume.prepare(2, "--policy", "FromStep", "--step", "2")
    assert back.words.message == "resuming from step 2 (checkpoints/step_000002)"
    missing = volume.prepare(3, "--policy", "FromStep", "--step", "3")
    assert missing.code == ExitCode.BAD_INPUT
    assert "resume.step: no committed checkpoint of step 3" in missing.words.message
    anew = volume.prepare(3, "--policy", "FromStep", "--step", "0")
    assert anew.words.message == "starting at step 0"


NEVER = ("--policy", "Never")
ARCHIVE = (*NEVER, "--on-existing", "Archive")


def test_never_is_about_what_is_there_before_the_run_begins(volume: Volume) -> None:
    volume.commit(2)
    never = volume.prepare(1, *NEVER)
    assert never.code == ExitCode.BAD_INPUT
    assert "holds committed checkpoints (steps 2), and resume.policy is Never" in never.words.message
    anew = volume.prepare(1, *ARCHIVE)
    assert anew.code == 0, anew.err
    assert anew.words.prepared is not None
    assert (anew.words.prepared.resume_step, anew.words.prepared.archived) == (0, "archive/uid")
    assert (volume.link / "config.json").is_file(), "the model is there, whatever was archived"
    volume.commit(4)
    for attempt, arguments in ((2, ARCHIVE), (3, NEVER)):
        goes_on = volume.prepare(attempt, *arguments)
        assert goes_on.words.message == "resuming from step 4 (checkpoints/step_000004)"
        assert "it goes on from its own checkpoints" in goes_on.out


def test_an_attempt_archives_what_the_one_before_it_did_not_come_to(volume: Volume) -> None:
    claim_run(volume.run, "tiny", "old")
    volume.commit(2, uid="old")
    volume.config(train=[EnvironmentConfig(name="a", type="import:no.such.module:make")])
    assert volume.prepare(1, *ARCHIVE).code == ExitCode.BAD_INPUT
    assert not (volume.run.root / "archive").exists()
    volume.config()
    found = volume.prepare(2, *ARCHIVE)
    assert found.words.prepared is not None, found.err
    assert (found.words.prepared.resume_step, found.words.prepared.archived) == (0, "archive/old")


def test_the_directory_of_another_run_with_more_attempts(volume: Volume) -> None:
    claim_run(volume.run, "tiny", "old")
    for attempt in (1, 2, 3):
        assert volume.prepare(attempt, uid="old").code == 0
        (volume.run.attempt(attempt) / "stop.json").write_text("{}")
    volume.commit(2, uid="old")
    refused = volume.prepare(1)
    assert refused.code == ExitCode.BAD_INPUT
    assert "belongs to run old (tiny), not to uid" in refused.words.message
    found = volume.prepare(1, "--on-existing", "Archive")
    assert found.code == 0, found.err
    assert not (volume.run.attempt(1) / "stop.json").exists(), "nothing of the other run's attempt is left"
    assert (volume.run.root / "archive/old/attempts/1/stop.json").exists()


def test_an_attempt_that_is_over_says_which_one_is_not(volume: Volume) -> None:
    assert volume.prepare(3).code == 0
    found = volume.prepare(2)
    assert (found.code, found.words.last_attempt) == (ExitCode.FENCED, 3)
    assert "attempt 3 has begun, attempt 2 is over" in found.words.message


def test_a_volume_that_cannot_be_written(volume: Volume) -> None:
    volume.run.root.parent.mkdir(parents=True)
    volume.run.root.touch()
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert found.words.message.startswith(f"spec.storage: found {volume.run.root}: ")
    assert "a volume that user" in found.words.message


def test_wrong_configs(volume: Volume) -> None:
    (volume.root / "prepare.json").write_text('{"run_dir": 3}')
    found = volume.prepare()
    assert found.code == ExitCode.BAD_INPUT
    assert "run_dir" in found.words.message


def test_sigterm_ends_it_and_it_can_be_done_again(volume: Volume) -> None:
    hang = volume.root / "code"
    hang.mkdir()
    started = volume.root / "started"
    code = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(300)\n"
    (hang / "hangs.py").write_text(code)
    volume.config(python_path=(str(hang),), train=[EnvironmentConfig(name="a", type="import:hangs:make")])
    process = volume.start()
    until = time.monotonic() + 180
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < until, process.returncode
        time.sleep(0.02)
    importing = int(started.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.ended(60) == 143
    words = read((volume.root / "words").read_bytes())
    assert words is not None
    assert (words.message, words.exit_name) == ("terminated", "SIGTERM")
    while proctable.stat_of(importing) is not None:
        assert time.monotonic() < until, "the import's process outlives it"
        time.sleep(0.02)
    (hang / "hangs.py").write_text("def make(): ...\n")
    assert volume.prepare().code == 0


def test_the_command_line_knows_it(volume: Volume) -> None:
    command = [sys.executable, "-m", "echorl_prepare", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    for option in ("--config", "--policy", "--step", "--on-existing", "FromStep"):
        assert option in done.stdout


def test_it_needs_no_package_that_the_orchestrators_image_lacks() -> None:
    """No typer, no operator's clients, no torch: their import is made to fail."""
    blocked = ("typer", "rich", "kopf", "kubernetes", "aiohttp", "matplotlib", "torch", "transformers", "vllm")
    script = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport echorl_prepare.__main__"
    subprocess.run([sys.executable, "-c", script], check=True)
