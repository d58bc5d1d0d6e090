"""W&B's and TensorBoard's own clients in processes of their own, without a network."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from echorl_core.config import EnvironmentConfig, MonitorsConfig, WandbConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.monitors.feed import Feed
from echorl_orchestrator.monitors.monitors import ENV_WANDB_KEY, Monitors, launches, taken_key
from echorl_testing.orchestrator.scripted_policy import orchestrator_config, write_byte_tokenizer
from echorl_testing.orchestrator.wandb_files import history, records
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(1200)

KEY = "k" * 40
STEP = {"time": "now", "step": 1, "reward/all/mean": 0.5, "loss/ce": None}
EVAL = {"step": 0, "environment": "held", "reward": 0.25, "examples": []}
_NOT_IN_THE_IMAGE = ("grpc", "markdown", "PIL", "tensorboard_data_server", "werkzeug", "pkg_resources")


async def told(folder: Path, monitors: MonitorsConfig, *steps: int, key: str | None = None) -> list[Feed]:
    """One life of the orchestrator: start, ``steps`` and an eval, end."""
    environment = EnvironmentConfig(name="odd", type="builtin:digits", args={"password": "hunter2"})
    config = orchestrator_config(write_byte_tokenizer(folder / "model"), [environment])
    config = config.model_copy(update={"monitors": monitors, "run_dir": str(folder)})
    feeds = [Feed(launch) for launch in launches(config, RunIdentity("words", "uid-7", 2), key)]
    whole = Monitors(feeds)
    running = asyncio.create_task(whole.run())
    for step in steps:
        whole.step({**STEP, "step": step}, {"running": 3})
    whole.evaluated(EVAL)
    await until(lambda: all(feed.written for feed in feeds), 400)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.wait_for(whole.close(), 120)
    return feeds


async def test_tensorboard_has_every_row(tmp_path: Path) -> None:
    (feed,) = await told(tmp_path, MonitorsConfig(tensorboard=True), 1, 2)
    assert (feed.written, feed.dropped, feed.failures) == (3, 0, 0)
    (file,) = (tmp_path / "tensorboard" / "attempt_2").iterdir()
    found = [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    per_step = [("reward/all/mean", 0.5), ("engines/running", 3)]
    assert found == [
        *((step, tag, value) for step in (1, 2) for tag, value in per_step),
        (0, "eval/held/reward", 0.25),
    ]


async def test_wandb_goes_on_with_the_run_of_the_same_uid_after_a_restart(tmp_path: Path) -> None:
    monitors = MonitorsConfig(wandb=WandbConfig(project="ours", mode="offline"))
    for steps in ((1, 2), (3,)):
        (feed,) = await told(tmp_path, monitors, *steps, key=KEY)
        assert (feed.written, feed.dropped, feed.failures) == (len(steps) + 1, 0, 0)
    files = sorted((tmp_path / "wandb").glob("offline-run-*-uid-7/run-uid-7.wandb"))
    runs = [record.run for file in files for record in records(file) if record.WhichOneof("record_type") == "run"]
    assert {(run.run_id, run.project, run.display_name) for run in runs} == {("uid-7", "ours", "words")}
    rows = [row for file in files for row in history(file)]
    of_step = {"reward/all/mean": 0.5, "engines/running": 3}
    of_eval = {"eval/step": 0, "eval/held/reward": 0.25}
    assert rows == [{"step": 1, **of_step}, {"step": 2, **of_step}, of_eval, {"step": 3, **of_step}, of_eval]
    written = b"".join(path.read_bytes() for path in (tmp_path / "wandb").rglob("*") if path.is_file())
    assert b"group_size" in written
    assert KEY.encode() not in written
    assert b"hunter2" not in written


def test_event_files_need_nothing_that_the_image_lacks(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({_NOT_IN_THE_IMAGE!r}))\n"
        "from echorl_orchestrator.monitors.tensorboard_sink import TensorBoardSink\n"
        "from echorl_orchestrator.monitors.rows import Row\n"
        f"sink = TensorBoardSink({{'folder': {str(tmp_path)!r}, 'attempt': 1}})\n"
        "sink.write(Row(axis='step', at=1, values={'a': 1.0}))\n"
        "sink.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env=dict(os.environ))


def test_the_key_is_taken_out_of_the_environment() -> None:
    environ = {ENV_WANDB_KEY: KEY, "HOME": "/"}
    assert taken_key(environ) == KEY
    assert environ == {"HOME": "/"}
    assert taken_key(environ) is None
