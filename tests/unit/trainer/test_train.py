"""One rank's whole loop in this process against an orchestrator at the wire: order, stops, exit codes."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from echorl_core.attempts import read_prepared
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_testing.trainer.tiny_learner import alone, tiny_learner
from echorl_testing.trainer.trainer_processes import trainer_config
from echorl_trainer import __main__ as entry
from echorl_trainer.learner import build_learner
from echorl_trainer.parallel import disconnect
from echorl_trainer.rank import run_to_words
from echorl_trainer.replay import replay
from echorl_trainer.state import TrainState, state_digest, trainer_folder
from echorl_trainer.train import settle


@pytest.fixture(autouse=True)
def own_process_group() -> Iterator[None]:
    yield
    disconnect()  # a rank that failed leaves its group to the end of its process


@pytest.fixture
async def orchestrator(tmp_path: Path) -> AsyncIterator[FakeOrchestrator]:
    async with attempt(tmp_path, 1) as running:
        yield running


def attempt(folder: Path, number: int, *, steps: int = 3) -> FakeOrchestrator:
    run, identity = RunDirectory(folder / "run"), RunIdentity("test", RUN_UID, number)
    prepare(run, identity)
    return FakeOrchestrator(run, identity, steps=steps)


def run_rank(orchestrator: FakeOrchestrator, model: Path, **config: object) -> "asyncio.Task[ExitCode]":
    """Start one rank in a thread."""
    settings: TrainerConfig = trainer_config(orchestrator.run, model, orchestrator.url, **config)

    def work() -> ExitCode:
        return ExitCode(run_to_words(settings, orchestrator.identity, TOKEN).exit_code)

    return asyncio.create_task(asyncio.to_thread(work))


async def ended(task: "asyncio.Task[ExitCode]") -> ExitCode:
    return await asyncio.wait_for(task, 180)


def holding(orchestrator: FakeOrchestrator, step: int) -> Callable[[], bool]:
    return lambda: any(pull == (step, 0) for pull in orchestrator.pulls)


async def test_run_to_the_end_announces_reports_and_saves_in_order(orchestrator: FakeOrchestrator, model: Path) -> None:
    assert await ended(run_rank(orchestrator, model)) == ExitCode.OK
    assert [one.version for one in orchestrator.announcements] == [0, 1, 2, 3]
    assert [one.step for one in orchestrator.reports] == [1, 2, 3]
    assert orchestrator.committed == [2, 3], "every second step, and the last"
    parts = {"wait_batch", "forward_backward", "optimizer", "publish", "checkpoint", "step"}
    assert set(orchestrator.reports[0].seconds) == parts
    assert orchestrator.reports[2].seconds["checkpoint"] > 0, "the stall of the save after step 2"
    assert orchestrator.reports[0].trained_tokens > 0
    assert orchestrator.reports[0].gap.tokens > 0
    assert orchestrator.events.index("policy 2") < orchestrator.events.index("step 2")


async def test_no_batch_is_pulled_before_the_start_version_is_known(
    orchestrator: FakeOrchestrator, model: Path
) -> None:
    orchestrator.refuse_policy = 3
    assert await ended(run_rank(orchestrator, model)) == ExitCode.OK
    assert orchestrator.events[:2] == ["policy 0", "batch 1"]


def test_the_log_names_what_was_chosen(model: Path) -> None:
    with alone() as ranks, capture_logs() as lines:
        tiny_learner(ranks, model)
    (line,) = [line for line in lines if line["event"] == "policy is ready"]
    assert (line["device"], line["dtype"], line["attention"]) == ("cpu", "float32", "sdpa by document")
    assert (line["optimizer"], line["fused_optimizer"], line["compiled"]) == ("adamw", False, False)


async def test_trained_state_equals_a_replay_of_the_same_batches(
    orchestrator: FakeOrchestrator, model: Path, tmp_path: Path
) -> None:
    assert await ended(run_rank(orchestrator, model)) == ExitCode.OK
    for step in range(1, 4):
        folder = tmp_path / "record" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        (folder / "rank_0.bin").write_bytes(orchestrator.bytes_of(step, 0))
    config = trainer_config(orchestrator.run, model)
    with alone() as ranks:
        replayed = replay(config, [tmp_path / "record"], tmp_path / "out", ranks=ranks)
        state: TrainState = build_learner(config, ranks).state
        assert state.restore(trainer_folder(orchestrator.run.checkpoint(3))) == 3
        assert state_digest(state.policy, state.optimizer) == replayed["digest"]


async def test_stop_on_request_saves_the_last_trained_step(orchestrator: FakeOrchestrator, model: Path) -> None:
    orchestrator.sealed = 1
    task = run_rank(orchestrator, model)
    await orchestrator.until(holding(orchestrator, 2))
    orchestrator.stop = StopNotice(reason="stopped", step=1, checkpoint=True)
    assert await ended(task) == ExitCode.OK
    assert orchestrator.committed == [1]


async def test_stop_at_a_step_that_is_saved_already_saves_no_more(orchestrator: FakeOrchestrator, model: Path) -> None:
    orchestrator.sealed = 2
    task = run_rank(orchestrator, model)
    await orchestrator.until(lambda: orchestrator.committed == [2])
    orchestrator.stop = StopNotice(reason="stopped", step=2, checkpoint=True)
    assert await ended(task) == ExitCode.OK
    assert list(orchestrator.parts) == [2]


async def test_stop_before_the_first_step_saves_nothing(orchestrator: FakeOrchestrator, model: Path) -> None:
    orchestrator.stop = StopNotice(reason="stopped", step=0, checkpoint=True)
    assert await ended(run_rank(orchestrator, model)) == ExitCode.OK
    assert not orchestrator.parts


async def test_next_attempt_resumes_at_the_committed_checkpoint(tmp_path: Path, model: Path) -> None:
    async with attempt(tmp_path, 1) as first:
        first.sealed = 2
        task = run_rank(first, model)
        await first.until(lambda: first.committed == [2])
        first.stop = StopNotice(reason="failed", step=2, checkpoint=False)
        assert await ended(task) == ExitCode.OK
    async with attempt(tmp_path, 2) as second:
        assert await ended(run_rank(second, model)) == ExitCode.OK
    assert [one.version for one in second.announcements] == [2, 3]
    assert all(one.attempt == 2 for one in second.announcements)
    assert second.committed == [3]
    prepared = read_prepared(second.run, 2)
    assert prepared is not None
    assert prepared.resume_step == 2


async def test_failed_save_costs_its_checkpoint_and_nothing_else(orchestrator: FakeOrchestrator, model: Path) -> None:
    orchestrator.run.checkpoints.mkdir(parents=True)
    orchestrator.run.checkpoint(2).write_text("in the way")
    assert await ended(run_rank(orchestrator, model)) == ExitCode.OK
    assert (orchestrator.abandoned, orchestrator.committed) == ([2], [3])


async def test_last_checkpoint_that_cannot_be_saved_ends_the_attempt(
    orchestrator: FakeOrchestrator, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestrator.run.checkpoints.mkdir(parents=True)
    orchestrator.run.checkpoint(3).write_text("in the way")
    assert await ended(run_rank(orchestrator, model)) == ExitCode.CRASH
    assert (orchestrator.abandoned, orchestrator.committed) == ([3], [2])
    assert "checkpoint 3, the run's last one, was not committed" in capsys.readouterr().out


@pytest.mark.parametrize(("blocked", "code"), [(False, ExitCode.OK), (True, ExitCode.CRASH)])
async def test_a_run_that_is_cut_short_ends_with_a_checkpoint(
    orchestrator: FakeOrchestrator, model: Path, *, blocked: bool, code: ExitCode
) -> None:
    orchestrator.sealed = 1
    if blocked:
        orchestrator.run.checkpoints.mkdir(parents=True)
        orchestrator.run.checkpoint(1).write_text("in the way")
    task = run_rank(orchestrator, model)
    await orchestrator.until(holding(orchestrator, 2))
    orchestrator.stop = StopNotice(reason="finished", step=1, checkpoint=True)
    assert await ended(task) == code
    assert (orchestrator.committed, orchestrator.abandoned) == (([], [1]) if blocked else ([1], []))


async def test_orchestrator_that_restarts_costs_nothing_and_hears_the_version_again(
    orchestrator: FakeOrchestrator, model: Path
) -> None:
    orchestrator.sealed = 1
    task = run_rank(orchestrator, model)
    # Reports follow announcements, so version 1 has been heard of then.
    await orchestrator.until(lambda: [one.step for one in orchestrator.reports] == [1])
    await orchestrator.until(holding(orchestrator, 2))
    await orchestrator.halt()
    orchestrator.announcements.clear()
    await orchestrator.start()
    await orchestrator.until(lambda: bool(orchestrator.announcements))
    assert {one.version for one in orchestrator.announcements} == {1}
    orchestrator.sealed = 3
    assert await ended(task) == ExitCode.OK
    assert [one.step for one in orchestrator.reports] == [1, 2, 3]


async def test_values_that_are_not_finite_end_the_run_for_good(
    orchestrator: FakeOrchestrator, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def poisoned(batch: RankBatch) -> RankBatch:
        micro = batch.micro_batches[0]
        bad = msgspec.structs.replace(micro, advantage=np.full_like(micro.advantage, np.inf))
        return msgspec.structs.replace(batch, micro_batches=[bad, *batch.micro_batches[1:]])

    orchestrator.change = lambda batch: poisoned(batch) if batch.step == 2 else batch
    assert await ended(run_rank(orchestrator, model)) == ExitCode.NON_FINITE
    assert [one.version for one in orchestrator.announcements] == [0, 1]
    assert "step 2" in capsys.readouterr().out


async def test_newer_attempt_fences_the_rank(orchestrator: FakeOrchestrator, model: Path) -> None:
    orchestrator.sealed = 1
    task = run_rank(orchestrator, model)
    await orchestrator.until(holding(orchestrator, 2))
    orchestrator.identity = RunIdentity("test", RUN_UID, 2)
    assert await ended(task) == ExitCode.FENCED


async def test_run_of_no_steps_serves_the_start_model(tmp_path: Path, model: Path) -> None:
    async with attempt(tmp_path, 1, steps=0) as orchestrator:
        orchestrator.finish = False
        task = run_rank(orchestrator, model)
        await orchestrator.until(lambda: [one.version for one in orchestrator.announcements] == [0])
        orchestrator.finish = True
        assert await ended(task) == ExitCode.OK


async def test_model_that_is_not_there_is_bad_input(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    assert await ended(run_rank(orchestrator, tmp_path / "nowhere")) == ExitCode.BAD_INPUT


async def test_attempt_that_was_not_prepared_does_not_start(tmp_path: Path, model: Path) -> None:
    orchestrator = FakeOrchestrator(RunDirectory(tmp_path), RunIdentity("test", RUN_UID, 1), steps=1)
    async with orchestrator:
        assert await ended(run_rank(orchestrator, model)) == ExitCode.CRASH


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"publish_host": "0.0.0.0"}, "advertise_host: engines need an address"),
        ({"seq_len": "long"}, "seq_len"),
        ({"no_such_key": 1}, "no_such_key"),
    ],
    ids=["no address for engines", "wrong type", "unknown key"],
)
def test_wrong_config_is_refused_before_anything_starts(
    tmp_path: Path, model: Path, change: dict[str, object], message: str
) -> None:
    settings = trainer_config(RunDirectory(tmp_path), model).model_dump(mode="json")
    path = tmp_path / "trainer.json"
    path.write_bytes(msgspec.json.encode({**settings, **change}))
    with pytest.raises(ValueError, match=message):
        entry.read_input(["--config", str(path)])


def test_the_collector_passes_over_what_is_there_once_and_not_over_what_comes_later() -> None:
    gc.unfreeze()
    try:
        early: list[object] = [[]]
        settle()
        late: list[object] = [[]]
        settle()
        looked_at = gc.get_objects()
        assert [any(one is each for one in looked_at) for each in (early, late)] == [False, True]
    finally:
        gc.unfreeze()
