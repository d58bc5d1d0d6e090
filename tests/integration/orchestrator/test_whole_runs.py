"""The orchestrator as a process, from the start of a run to its end."""

import asyncio
import json
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from echorl_core import names, termination_message
from echorl_core.config import (
    MonitorsConfig,
    WandbConfig,
)
from echorl_core.names import ExitCode
from echorl_core.wire.batch import StopNotice
from echorl_testing.engines.fake_engine import FakeEngine
from echorl_testing.orchestrator.orchestrator_run import Run, check_batches, environment
from echorl_testing.ports import free_port
from echorl_testing.waiting import until


async def test_a_run_to_its_end(run: Run, engine: FakeEngine) -> None:
    run.configure()
    trainer = run.trainer()
    async with run.orchestrator() as process:
        notice = await trainer.run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert notice == StopNotice(reason="finished", step=4, checkpoint=False)
    assert trainer.saved == {2: "committed", 4: "committed"}
    check_batches(run, trainer, 4)
    steps = run.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(row["staleness/all/max"] <= 1 and row["loss/rl"] == 0.5 and row["tokens/trained"] == 10 for row in steps)
    assert all(row["reward/all/mean"] is not None and row["batch/episodes"] == 4 for row in steps)
    evals = run.rows("evals")
    assert [row["step"] for row in evals] == [0, 2, 4]
    assert all(row["episodes"] == 4 and row["errors"] == 0 for row in evals)
    assert {row["version"] for row in run.rows("updates")} >= {0, 4}
    episodes = run.rows("episodes")
    assert {row["kind"] for row in episodes} == {"train", "eval"}
    assert all(row["messages"] and row["turns"] for row in episodes)
    assert engine.held is not None
    assert engine.held["version"] == 4
    assert run.directory.sealed_steps() == []


async def test_a_run_keeps_all_episodes_and_tells_its_monitors_of_which_one_is_out_of_reach(run: Run) -> None:
    unreachable = WandbConfig(project="p", base_url=f"http://127.0.0.1:{free_port()}")
    run.configure(record_episodes=True, monitors=MonitorsConfig(wandb=unreachable, tensorboard=True))
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        # A step's file is left out where files of as many steps as can be sealed by now wait for the disk.
        await until(lambda: run.directory.episodes(1, 2).exists())
        trainer.go_on.set()
        await training
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    for step in range(1, 5):
        rows = read_table(run.directory.episodes(1, step)).to_pylist()
        assert [row["in_batch"] for row in rows] == [True] * 4
        assert all(row["step"] == step and row["environment"] == "digits" for row in rows)
        assert {message["role"] for row in rows for message in json.loads(row["messages"])} >= {"user", "assistant"}
    for version in (0, 2, 4):
        held_out = read_table(run.directory.eval_episodes(1, version, "held-out")).to_pylist()
        (row,) = [row for row in run.rows("evals") if row["step"] == version]
        assert len(held_out) == row["episodes"] > 0
        assert {one["kind"] for one in held_out} == {"eval"}
        assert sum(one["reward"] for one in held_out) / len(held_out) == pytest.approx(row["reward"])
    (events,) = (run.directory.root / "tensorboard" / "attempt_1").iterdir()
    found = {(value.tag, event.step) for event in EventFileLoader(str(events)).Load() for value in event.summary.value}
    assert {("reward/all/mean", step) for step in range(1, 5)} <= found
    assert {("loss/rl", step) for step in range(1, 5)} <= found
    assert {("eval/held-out/reward", step) for step in (0, 2, 4)} <= found


async def test_sft_seals_one_batch_ahead_of_its_trainer(run: Run) -> None:
    train = [environment("talks", type="builtin:terminal-demonstrations", args={"num_tasks": 4})]
    run.configure(max_steps=12, batch={"mode": "sft", "group_size": 1}, train=train, evals=[])
    trainer = run.trainer()
    trainer.hold_after = 4
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        state = await run.state()
        while "enough episodes are ready for batch 6" not in state["waiting_for"]:
            state = await run.state(since=state["revision"], wait=10)
        await until(lambda: any(step == 5 for step, _ in run.directory.sealed_steps()))
        trainer.go_on.set()
        await training
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert [row["step"] for row in run.rows("steps")] == list(range(1, 13))


async def test_no_steps_evaluate_the_base_model_and_end(run: Run) -> None:
    run.configure(max_steps=0)
    async with run.orchestrator() as process:
        assert (await run.trainer().run()) == StopNotice(reason="finished", step=0, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert [row["step"] for row in run.rows("evals")] == [0]


async def test_its_last_words(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_TERMINATION_LOG, str(tmp_path / "words"))
    run.configure(max_steps=1)
    async with run.orchestrator() as process:
        await run.trainer().run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    words = termination_message.read((tmp_path / "words").read_bytes())
    assert words is not None
    assert (words.role, words.exit_name, words.attempt, words.step) == ("orchestrator", "OK", 1, 1)
    assert words.message == "finished: step 1 is trained, committed and evaluated"
    (row,) = run.rows("steps")
    assert words.reward == row["reward/all/mean"]
    run.configure(train=[environment("lost", type="import:no_such_module:make")])
    async with run.orchestrator() as process:
        assert await process.wait() == ExitCode.BAD_INPUT
    words = termination_message.read((tmp_path / "words").read_bytes())
    assert words is not None
    assert words.exit_name == "BAD_INPUT"
    assert "no_such_module" in words.message
