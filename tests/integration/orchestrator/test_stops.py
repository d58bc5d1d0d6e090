"""The orchestrator as a process that dies or is asked to stop, and the one that goes on."""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from echorl_core import names
from echorl_core.checkpoints import committed
from echorl_core.config import (
    CheckpointConfig,
)
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.termination_message import read
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.reports import NoticeReport
from echorl_orchestrator.records.recorder import EVALS, read_rows
from echorl_testing import campaign
from echorl_testing.orchestrator.orchestrator_run import SECOND, Run, check_batches
from echorl_testing.waiting import until

POINTS = [
    "before_seal@2",
    "after_seal@2",
    "one_rank_pulled@2",
    "before_manifest",
    "after_manifest",
    "after_manifest@2",
    "before_manifest@2",
    "after_seal@4",
]


@pytest.mark.faults
@pytest.mark.parametrize("point", campaign.campaign_params("points of an orchestrator", POINTS, 2))
async def test_a_killed_orchestrator_goes_on_where_it_was(run: Run, tmp_path: Path, point: str) -> None:
    run.configure()
    trainer = run.trainer()
    training = asyncio.create_task(trainer.run())
    faults = f"orchestrator.{point}!{tmp_path / 'marker'}"
    async with run.orchestrator(faults) as process:
        assert await process.wait() == -signal.SIGKILL, run.log.read_text()
    async with run.orchestrator(faults) as process:
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    assert [row["step"] for row in run.rows("steps")] == [1, 2, 3, 4]
    assert [row["step"] for row in run.rows("evals")] == [0, 2, 4]


async def test_a_stop_saves_where_the_ranks_are_and_a_new_attempt_goes_on(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert await run.stop() == 200
        assert await run.stop() == 200
        trainer.go_on.set()
        assert await training == StopNotice(reason="stopped", step=3, checkpoint=True)
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    (checkpoint,) = committed(run.directory)[0]
    assert (checkpoint.step, checkpoint.manifest.history) == (3, run.histories()[3])
    assert prepare(run.directory, SECOND).resume_step == 3
    state = msgspec.msgpack.decode((checkpoint.folder / "attempt_1/orchestrator/state.bin").read_bytes())
    assert state["step"] == 3
    dealt = state["deck"]["cursors"]["digits"]
    assert dealt["next"] - len(dealt["returned"]) == 6  # two groups a step were used up


async def test_steps_of_a_lost_attempt_that_are_trained_again_are_told_apart_from_useful_ones(run: Run) -> None:
    run.configure(max_steps=5, evals=[], checkpoint=CheckpointConfig(interval=2, keep_last=2))
    # So short that every interval between two reports has room for them.
    parts = {"step": 0.0005, "wait_batch": 0.0001}
    first = replace(run.trainer(), hold_after=3, seconds=parts)
    training = asyncio.create_task(first.run())
    async with run.orchestrator() as process:
        await first.held.wait()
        await until(lambda: len(run.rows("steps")) == 3 and bool(committed(run.directory)[0]))
        process.kill()
        await process.wait()
    training.cancel()
    assert prepare(run.directory, SECOND).resume_step == 2
    second = replace(run.trainer(), identity=SECOND, start_step=2, hold_after=5, seconds=parts)
    training = asyncio.create_task(second.run())
    async with run.orchestrator(identity=SECOND) as process:
        await second.held.wait()
        shown = await run.metrics()
        second.go_on.set()
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    account = msgspec.json.decode((run.directory.attempt(2) / "goodput.json").read_bytes())
    trainer, tokens = account["seconds"]["trainer"], account["tokens"]
    # Of each step 0.4 ms are its own, on two ranks: steps 1 to 5 once, and step 3 again.
    assert trainer["useful"] == pytest.approx(2 * 5 * 0.0004)
    assert trainer["redone"] == pytest.approx(2 * 1 * 0.0004)
    # The first attempt's start, and from its end to the second one's first step.
    assert trainer["starting"] > 0
    assert trainer["restarting"] > 0
    sampled = {
        (row["attempt"], row["step"]): row["tokens/batch_sampled"] for n in (1, 2) for row in run.rows("steps", n)
    }
    assert tokens["redone"] == sampled.pop((2, 3))
    assert tokens["useful"] == sum(sampled.values())
    assert account["closed"] is True
    (line,) = [line for line in shown.splitlines() if 'gpu_seconds_total{kind="trainer",state="redone"}' in line]
    assert float(line.split()[-1]) == pytest.approx(2 * 0.0004)


async def test_an_eval_that_a_lost_attempt_did_not_finish_is_told_by_the_next(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        # A stop does not wait for evals.
        while not read_rows(run.directory.records(1) / EVALS):
            await run.state()
        assert await run.stop() == 200
        trainer.go_on.set()
        assert (await training).step == 3
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    kept = {**run.rows("evals")[0], "step": 2}  # as if the base model's eval had been in flight when all was lost
    (run.directory.records(1) / "evals.jsonl").write_text(json.dumps(kept) + "\n")
    assert prepare(run.directory, SECOND).resume_step == 3
    lost = run.directory.records(2) / "evals.jsonl"
    async with run.orchestrator(identity=SECOND) as process:
        while not (lost.exists() and lost.read_text().endswith("\n")):
            await run.state()
        assert (await run.state())["eval"] == {}
        shown = await run.metrics()
        process.terminate()
        await process.wait()
    (row,) = run.rows("evals", attempt=2)
    assert (row["step"], row["environment"], row["attempt"]) == (0, "held-out", 2)
    assert row["skipped"] == "no attempt has recorded it, and the run resumed from step 3"
    assert 'echorl_orchestrator_evals_skipped_total{environment="held-out"} 1.0' in shown.splitlines()


async def test_a_stop_before_anything_began(run: Run) -> None:
    run.configure()
    async with run.orchestrator() as process:
        await run.state()
        assert await run.stop() == 200
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    assert committed(run.directory) == ([], [])


async def test_sigterm_ends_it_at_once(run: Run) -> None:
    run.configure()
    async with run.orchestrator() as process:
        await run.state()
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM


async def test_a_notice_commits_what_its_gang_saves_and_the_next_process_goes_on(run: Run, tmp_path: Path) -> None:
    run.configure(max_steps=4, evals=[], checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 2
    training = asyncio.create_task(trainer.run())
    noticed = {names.ENV_GRACE: "200", names.ENV_TERMINATION_LOG: str(tmp_path / "words")}
    async with run.orchestrator(variables=noticed) as process:
        await trainer.held.wait()
        # One node is drained: ranks and orchestrator are given notice.
        decided = await run.give_notice(NoticeReport(attempt=1, rank=1, within_s=100.0, save_s=1.0))
        assert decided.step == 2
        account = run.directory.attempt(1) / "goodput.json"
        before = account.stat().st_mtime_ns
        process.terminate()
        await until(lambda: "given notice" in run.log.read_text())
        # Whoever ends the gang may not wait for this process. Otherwise it is kept every half minute.
        await until(lambda: account.stat().st_mtime_ns > before, 15.0)
        assert process.returncode is None, "the checkpoint of its ranks is not committed yet"
        trainer.go_on.set()
        assert await training == StopNotice(reason="notice", step=2, checkpoint=True)
        assert await process.wait() == ExitCode.NOTICE, run.log.read_text()
    words = read((tmp_path / "words").read_bytes())
    assert words is not None
    assert (words.exit_name, words.step) == ("NOTICE", 2)
    assert prepare(run.directory, SECOND).resume_step == 2
    second = replace(run.trainer(), identity=SECOND, start_step=2)
    training = asyncio.create_task(second.run())
    async with run.orchestrator(identity=SECOND) as process:
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert sorted({step for step, _ in second.batches}) == [3, 4], "nothing is redone"
