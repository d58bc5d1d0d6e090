import asyncio
from pathlib import Path

import msgspec
import pytest

from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.reports import RestartReport
from echorl_orchestrator.attempt.trainer_desk import NoSuchBatch, TrainerDesk
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_testing.engines.fake_engine import policy
from echorl_testing.orchestrator.sealed import prepared, seal_step, store_of


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    prepared(RunDirectory(tmp_path))
    return store_of(tmp_path)


def desk_of(store: BatchStore, tmp_path: Path, *, ranks: int = 2, start_step: int = 0) -> TrainerDesk:
    desk = TrainerDesk(store, num_ranks=ranks, start_step=start_step, attempt_folder=tmp_path / "attempts" / "1")
    desk.load()
    return desk


async def test_a_pull_waits_for_the_seal_and_may_be_repeated(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path)
    assert await desk.pull(1, 0, 0.0) is None
    waiting = asyncio.create_task(desk.pull(1, 0, 10.0))
    await asyncio.sleep(0)
    seal_step(store, 1, ranks=2)
    await desk.sealed()
    assert await waiting == store.rank_file(1, 0)
    assert await desk.pull(1, 0, 0.0) == store.rank_file(1, 0)
    assert await desk.pull(1, 1, 0.0) == store.rank_file(1, 1)
    assert desk.given == 1
    assert [desk.pulled(1, 0), desk.pulled(1, 0), desk.pulled(1, 1)] == [1, 1, 2]


async def test_ranks_that_share_packs_are_given_the_same_batch(store: BatchStore, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "1"
    desk = TrainerDesk(store, num_ranks=4, context=2, start_step=0, attempt_folder=folder)
    seal_step(store, 1, ranks=2)
    given = [await desk.pull(1, rank, 0.0) for rank in range(4)]
    assert given == [store.rank_file(1, rank) for rank in (0, 0, 1, 1)]


async def test_a_stop_is_decided_once_at_the_highest_step_given(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path)
    for step in (1, 2, 3):
        seal_step(store, step, ranks=2)
    await desk.pull(2, 0, 0.0)
    notice = await desk.stop(committed=1)
    assert notice == StopNotice(reason="stopped", step=2, checkpoint=True)
    assert await desk.pull(2, 1, 0.0) == store.rank_file(2, 1)
    assert await desk.pull(3, 0, 0.0) == notice
    assert await desk.stop(committed=2) == notice


async def test_a_stop_is_concluded_when_all_ranks_know_and_the_last_report_is_in(
    store: BatchStore, tmp_path: Path
) -> None:
    desk = desk_of(store, tmp_path)
    seal_step(store, 1, ranks=2)
    await desk.pull(1, 0, 0.0)
    await desk.stop(committed=1)
    await desk.pull(2, 0, 0.0)
    await desk.step_reported(1)
    assert not await desk.concluded(0.0)
    successor = desk_of(store_of(tmp_path), tmp_path)
    for rank in (0, 1):
        await successor.pull(2, rank, 0.0)
    assert not await successor.concluded(0.0)
    waiting = asyncio.create_task(successor.concluded(10.0))
    await asyncio.sleep(0)
    await successor.step_reported(1)
    assert await waiting


async def test_nothing_is_given_out_while_a_stop_is_written(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path)
    seal_step(store, 1, ranks=2)
    stopping = asyncio.create_task(desk.stop(committed=0))
    await asyncio.sleep(0)
    pulling = asyncio.create_task(desk.pull(1, 0, 10.0))
    assert await stopping == StopNotice(reason="stopped", step=0, checkpoint=False)
    assert await pulling == await stopping


async def test_a_successor_repeats_the_decision(store: BatchStore, tmp_path: Path) -> None:
    seal_step(store, 1, ranks=2)
    desk = desk_of(store, tmp_path)
    await desk.pull(1, 0, 0.0)
    notice = await desk.stop(committed=0)
    seal_step(store, 2, ranks=2)
    successor = desk_of(store_of(tmp_path), tmp_path)
    assert successor.notice == notice
    assert await successor.pull(2, 1, 0.0) == notice


async def test_what_was_sealed_before_a_restart_may_have_been_given(store: BatchStore, tmp_path: Path) -> None:
    seal_step(store, 1, ranks=2)
    assert (await desk_of(store, tmp_path).stop(committed=0)).step == 1


async def test_a_run_that_nobody_has_joined_stops_at_its_start(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path, start_step=4)
    assert await desk.stop(committed=4) == StopNotice(reason="stopped", step=4, checkpoint=False)
    assert await desk.concluded(0.0)


async def test_a_finished_run_tells_those_who_wait(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path, ranks=1)
    seal_step(store, 1)
    await desk.pull(1, 0, 0.0)
    waiting = asyncio.create_task(desk.pull(2, 0, 10.0))
    await asyncio.sleep(0)
    await desk.step_reported(1)
    await desk.finish(1)
    assert await waiting == StopNotice(reason="finished", step=1, checkpoint=False)
    assert await desk.concluded(0.0)


async def test_ranks_of_a_run_that_was_cut_short_save_before_they_end(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path, ranks=1)
    seal_step(store, 1)
    await desk.pull(1, 0, 0.0)
    await desk.finish(1, checkpoint=True)
    assert await desk.pull(2, 0, 0.0) == StopNotice(reason="finished", step=1, checkpoint=True)


@pytest.mark.parametrize(("step", "rank", "words"), [(1, 2, "rank: found 2"), (2, 0, "step: found 2"), (3, 0, "kept")])
async def test_pulls_that_can_never_succeed_are_refused(
    store: BatchStore, tmp_path: Path, step: int, rank: int, words: str
) -> None:
    desk = desk_of(store, tmp_path, start_step=2)
    seal_step(store, 3, ranks=2)
    await desk.pull(3, 0, 0.0)
    store.release(3)
    with pytest.raises(NoSuchBatch, match=words):
        await desk.pull(step, rank, 0.0)


async def test_done_means_announced_and_reported(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path)
    waiting = asyncio.create_task(desk.done(1))
    await desk.announced(policy(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await desk.step_reported(1)
    async with asyncio.timeout(60):
        await waiting


async def test_a_successor_knows_the_newest_policy(store: BatchStore, tmp_path: Path) -> None:
    desk = desk_of(store, tmp_path)
    for version in (0, 3, 2):
        await desk.announced(policy(version))
    assert desk.trained == 3
    assert desk_of(store, tmp_path).policy == policy(3)


async def test_a_version_that_another_process_announces_again_lies_where_that_one_says(
    store: BatchStore, tmp_path: Path
) -> None:
    desk = desk_of(store, tmp_path)
    first = policy(2)
    again = msgspec.structs.replace(first, url="http://127.0.0.1:9/again/manifest.json")
    await desk.announced(first)
    await desk.announced(policy(1))
    assert desk.policy == first
    await desk.announced(again)
    assert desk.policy == again
    assert desk_of(store, tmp_path).policy == again


async def test_ranks_of_before_a_restart_are_refused_also_by_an_orchestrator_that_starts_again(
    store: BatchStore, tmp_path: Path
) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True, exist_ok=True)
    desk = desk_of(store, tmp_path)
    assert [desk.refusal(told) for told in (None, "0", "7")] == [None, None, None]
    await desk.restarted(RestartReport(attempt=1, step=4, count=2, reason="others came", replacements=1))
    for known in (desk, desk_of(store, tmp_path)):
        assert [known.refusal(told) for told in (None, "2", "3")] == [None, None, None]
        assert known.refusal("1") == "message of a rank of before restart 2 in place; 1 came before it"
        assert known.restarts_in_place.replacements == 1
