import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from echorl_core import checkpoints, faults
from echorl_core.checkpoints import read_manifest, verify
from echorl_core.config import CheckpointConfig
from echorl_core.rundir import RunDirectory
from echorl_core.wire.reports import PartsReport
from echorl_orchestrator.attempt import committer as committers
from echorl_orchestrator.attempt.committer import Committer
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_testing.orchestrator.sealed import UID, identity, parts_report, prepared, seal_step, store_of
from echorl_testing.waiting import until


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    prepared(RunDirectory(tmp_path))
    return RunDirectory(tmp_path)


def committer(
    run: RunDirectory, store: BatchStore, *, ranks: int = 1, keep: int = 2, deadline_s: float = 30.0, attempt: int = 1
) -> Committer:
    made = Committer(
        run,
        identity(attempt),
        store,
        CheckpointConfig(interval=1, keep_last=keep),
        num_ranks=ranks,
        part_deadline_s=deadline_s,
    )
    made.load(0)
    return made


@asynccontextmanager
async def running(made: Committer) -> AsyncIterator[Committer]:
    task = asyncio.create_task(made.run())
    try:
        async with asyncio.timeout(120):  # a disk may take its time
            yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_manifest_is_written_when_every_part_is_in(run: RunDirectory) -> None:
    store = store_of(run.root)
    state = seal_step(store, 1, ranks=2)
    async with running(committer(run, store, ranks=2)) as made:
        assert made.report(parts_report(run, 1, 0)).state == "waiting"
        assert made.report(parts_report(run, 1, 0)).state == "waiting"
        assert made.waiting == {1: 1}
        assert read_manifest(run.checkpoint(1)) is None
        report = parts_report(run, 1, 1)
        assert made.report(report).state == "waiting"
        assert await made.settled(1) == "committed"
        assert made.report(report).state == "committed"
        assert not await made.acknowledged(1, 0.0)
        made.report(parts_report(run, 1, 0))
        assert await made.acknowledged(1, 0.0)
    manifest = read_manifest(run.checkpoint(1))
    assert manifest is not None
    verify(run.checkpoint(1), manifest)
    assert sorted((part.role, part.rank) for part in manifest.parts) == [
        ("orchestrator", 0),
        ("trainer", 0),
        ("trainer", 1),
    ]
    assert (manifest.run_uid, manifest.attempt, manifest.step, manifest.policy_version) == (UID, 1, 1, 1)
    assert manifest.history == state.history
    assert made.newest == manifest
    assert store.newest is None  # released


async def test_another_rule_holds_from_the_next_commit_on(run: RunDirectory) -> None:
    store = store_of(run.root)
    async with running(committer(run, store, keep=1)) as made:
        for step in (1, 2, 3):
            if step == 2:
                made.adopt(CheckpointConfig(interval=1, keep_last=3))
            seal_step(store, step)
            made.report(parts_report(run, step))
            assert await made.settled(step) == "committed"
        assert made.committed_steps == [1, 2, 3]


async def test_ranks_that_have_reported_are_waited_for_until_they_know_the_outcome(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1, ranks=2)
    async with running(committer(run, store, ranks=2)) as made:
        assert await made.heard(0.0)
        reports = [parts_report(run, 1, rank) for rank in range(2)]
        for report in reports:
            made.report(report)
        assert await made.settled(1) == "committed"
        made.report(reports[0])
        assert not await made.heard(0.01)
        waiting = asyncio.create_task(made.heard(10.0))
        made.report(reports[1])
        assert await waiting


async def test_a_rank_is_answered_once_its_checkpoint_is_settled_and_after_a_moment_at_the_latest(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(run.root)
    seal_step(store, 1, ranks=2)
    async with running(committer(run, store, ranks=2)) as made:
        assert (await made.take(parts_report(run, 1, 0))).state == "waiting", "the other one may take long"
        monkeypatch.setattr(committers, "ANSWER_S", 60.0)
        answers = asyncio.gather(*(made.take(parts_report(run, 1, rank)) for rank in range(2)))
        assert [answer.state for answer in await answers] == ["committed"] * 2
        assert await made.acknowledged(1, 0.0)
        assert await made.heard(0.0)


async def test_retention_removes_the_oldest_and_leaves_what_lies_ahead(run: RunDirectory) -> None:
    store = store_of(run.root)
    # A later checkpoint of a lineage that this attempt went back behind, and one that was never committed.
    shutil.copytree(_other_lineage(run), run.checkpoint(9), dirs_exist_ok=True)
    parts_report(run, 2)
    async with running(committer(run, store, keep=2)) as made:
        for step in (1, 3, 4):
            seal_step(store, step)
            made.report(parts_report(run, step))
            assert await made.settled(step) == "committed"
        assert made.committed_steps == [3, 4]
    assert [step for step, _ in run.checkpoint_steps()] == [3, 4, 9]


def _other_lineage(run: RunDirectory) -> Path:
    folder = run.root / "elsewhere"
    folder.mkdir()
    manifest = checkpoints.CheckpointManifest(
        run_uid=UID, attempt=1, step=9, policy_version=9, num_ranks=1, committed_at="", history="", parts=[]
    )
    checkpoints.write_manifest(folder, manifest)
    return folder


async def test_a_rank_that_could_not_save_abandons_the_checkpoint(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1, ranks=2)
    async with running(committer(run, store, ranks=2)) as made:
        made.report(PartsReport(attempt=1, step=1, rank=1, parts=[], error="No space left on device"))
        assert await made.settled(1) == "abandoned"
        assert made.report(parts_report(run, 1, 0)).state == "abandoned"
        await until(lambda: not (run.checkpoint(1) / "attempt_1").exists())
        assert (made.abandoned, made.lost_step) == (1, 1)
        assert made.reason == "checkpoint 1: could not save: No space left on device"
        assert read_manifest(run.checkpoint(1)) is None
        assert store.seal(1) is not None
        seal_step(store, 2, ranks=2)
        for rank in range(2):
            made.report(parts_report(run, 2, rank))
        assert await made.settled(2) == "committed"
        assert (made.abandoned, made.lost_step) == (1, None)


async def test_missing_parts_abandon_at_the_deadline(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1, ranks=2)
    async with running(committer(run, store, ranks=2, deadline_s=0.05)) as made:
        made.report(parts_report(run, 1, 0))
        assert await made.settled(1) == "abandoned"
        # The other rank may still write; its files go with the rest once it has reported.
        assert (run.checkpoint(1) / "attempt_1").exists()
        made.report(parts_report(run, 1, 1))
        await until(lambda: not (run.checkpoint(1) / "attempt_1").exists())
    assert made.reason == "checkpoint 1: no parts of ranks [1] within 0.05 s"


async def test_a_reported_file_that_is_not_there_abandons(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1)
    report = parts_report(run, 1)
    (run.checkpoint(1) / report.parts[0].file).write_bytes(b"less")
    async with running(committer(run, store)) as made:
        made.report(report)
        assert await made.settled(1) == "abandoned"
    assert "is not the file of 7 bytes that was reported" in (made.reason or "")


async def test_a_manifest_that_cannot_be_written_abandons(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_manifest", full)
    store = store_of(run.root)
    seal_step(store, 1)
    async with running(committer(run, store)) as made:
        made.report(parts_report(run, 1))
        assert await made.settled(1) == "abandoned"
    assert "No space left" in (made.reason or "")
    assert store.seal(1) is not None


@pytest.mark.parametrize(("point", "counts"), [("before", False), ("after", True)])
async def test_a_crash_around_the_manifest_is_made_good_by_a_successor(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, point: str, *, counts: bool
) -> None:
    store = store_of(run.root)
    seal_step(store, 1)
    report = parts_report(run, 1)
    monkeypatch.setenv("ECHORL_FAULTS", f"orchestrator.{point}_manifest=raise")
    monkeypatch.setattr(faults, "_passages", type(faults._passages)())
    made = committer(run, store)
    made.report(report)
    with pytest.raises(faults.InjectedFault):
        await made.run()
    monkeypatch.delenv("ECHORL_FAULTS")
    assert (read_manifest(run.checkpoint(1)) is not None) is counts
    store = store_of(run.root)
    assert store.newest == 1
    async with running(committer(run, store)) as successor:
        assert successor.report(report).state == ("committed" if counts else "waiting")
        assert await successor.settled(1) == "committed"
    assert store.newest is None
    verify(run.checkpoint(1), read_manifest(run.checkpoint(1)))  # type: ignore[arg-type]


async def test_another_attempts_manifest_does_not_count_as_ours(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1)
    async with running(committer(run, store)) as made:
        made.report(parts_report(run, 1))
        await made.settled(1)
    prepared(run, 2)
    store = store_of(run.root, 2)
    seal_step(store, 1, attempt=2)
    async with running(committer(run, store, attempt=2)) as made:
        assert made.newest is None
        assert made.report(parts_report(run, 1, attempt=2)).state == "waiting"
        assert await made.settled(1) == "committed"
    manifest = read_manifest(run.checkpoint(1))
    assert manifest is not None
    assert manifest.attempt == 2
    assert all(part.file.startswith("attempt_2/") for part in manifest.parts)


async def test_a_gang_that_was_restarted_in_place_reports_anew_what_was_not_whole(run: RunDirectory) -> None:
    store = store_of(run.root)
    for step in (1, 2, 3):
        seal_step(store, step, ranks=2)
    async with running(committer(run, store, ranks=2)) as made:
        for rank in range(2):
            made.report(parts_report(run, 1, rank))
        made.report(parts_report(run, 2, 0))
        made.report(parts_report(run, 3, 0))
        assert await made.restarted(3) == "waiting"
        assert made.state(1) == "committed", "its parts were all there"
        assert await made.settled(2) == "abandoned"
        assert made.reason == "checkpoint 2: its ranks were started again in place beyond it, at step 3"
        assert made.waiting == {3: 0}
        await until(lambda: not (run.checkpoint(2) / "attempt_1").exists())
        for rank in range(2):
            made.report(parts_report(run, 3, rank))
        assert await made.settled(3) == "committed"
        assert await made.restarted(3) == "committed"
