"""The trainer's calls to the orchestrator: patience, order, and whose batches are trained."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import WIRE_VERSION, RankBatch, StopNotice
from echorl_core.wire.reports import LogprobGap, StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing.trainer.batches import RUN_UID, rank_batch
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_trainer.client import OrchestratorBatches, Outbox, WrongBatch, check_batch
from echorl_trainer.health import Watch
from echorl_trainer.link import Fenced, Link, OrchestratorLost, Unreachable
from echorl_trainer.rank import request_headers

IDENTITY = RunIdentity("test", RUN_UID, 1)


@pytest.fixture
async def orchestrator(tmp_path: Path) -> AsyncIterator[FakeOrchestrator]:
    async with FakeOrchestrator(RunDirectory(tmp_path), IDENTITY, steps=3) as running:
        yield running


def link_to(orchestrator: FakeOrchestrator, *, deadline_s: float = 90.0, watch: Watch | None = None) -> Link:
    headers = request_headers(IDENTITY, TOKEN)
    return Link(orchestrator.url, headers, deadline_s=deadline_s, watch=watch or Watch())


def batches(link: Link, *, rank: int = 0, num_ranks: int = 1, idle: object = lambda: None) -> OrchestratorBatches:
    return OrchestratorBatches(
        link,
        run_uid=RUN_UID,
        attempt=1,
        rank=rank,
        num_ranks=num_ranks,
        idle=idle,  # type: ignore[arg-type]
    )


def announcement(version: int) -> PolicyAnnouncement:
    return PolicyAnnouncement(
        attempt=1, version=version, digest="d", url="http://x/m", size_bytes=1, seconds_gather=0.0
    )


def report(step: int) -> StepReport:
    gap = LogprobGap(tokens=0, max_abs=None, mean_abs=None, over_tolerance=0)
    return StepReport(attempt=1, step=step, metrics={}, gap=gap, trained_tokens=1, packed_tokens=1, seconds={})


async def test_batch_is_asked_for_again_until_it_is_sealed(orchestrator: FakeOrchestrator) -> None:
    orchestrator.sealed = 0
    waits: list[None] = []
    pulling = asyncio.create_task(
        asyncio.to_thread(batches(link_to(orchestrator), idle=lambda: waits.append(None)).batch, 1)
    )
    await orchestrator.until(lambda: len(orchestrator.pulls) >= 2)
    orchestrator.sealed = 1
    batch = await pulling
    assert isinstance(batch, RankBatch)
    assert batch.step == 1
    assert len(waits) >= 1


async def test_every_call_says_who_asks(orchestrator: FakeOrchestrator) -> None:
    await asyncio.to_thread(batches(link_to(orchestrator)).batch, 1)
    headers = orchestrator.headers[-1]
    assert headers["X-EchoRL-Run"] == RUN_UID
    assert headers["X-EchoRL-Attempt"] == "1"
    assert headers["X-EchoRL-Wire"] == str(WIRE_VERSION)
    assert headers["X-EchoRL-Token"] == TOKEN


async def test_end_of_the_run_is_a_stop_notice(orchestrator: FakeOrchestrator) -> None:
    orchestrator.stop = StopNotice(reason="stopped", step=1, checkpoint=True)
    assert await asyncio.to_thread(batches(link_to(orchestrator)).batch, 2) == orchestrator.stop


async def test_orchestrator_of_another_attempt_fences_this_process(orchestrator: FakeOrchestrator) -> None:
    orchestrator.identity = RunIdentity("test", RUN_UID, 2)
    with pytest.raises(Fenced, match="this is attempt 2"):
        await asyncio.to_thread(batches(link_to(orchestrator)).batch, 1)


async def test_batch_of_another_rank_count_is_refused(orchestrator: FakeOrchestrator) -> None:
    orchestrator.num_ranks = 4
    with pytest.raises(WrongBatch, match="num_ranks is 4, accepted is 2"):
        await asyncio.to_thread(batches(link_to(orchestrator), num_ranks=2).batch, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("wire_version", 99), ("run_uid", "other"), ("step", 7), ("rank", 1), ("num_ranks", 3)],
)
def test_batch_that_is_not_this_one_is_named_by_its_field(field: str, value: object) -> None:
    batch = msgspec.structs.replace(rank_batch(1), **{field: value})
    with pytest.raises(WrongBatch, match=f"{field} is {value!r}"):
        check_batch(batch, run_uid=RUN_UID, step=1, rank=0, num_ranks=1)


async def test_orchestrator_that_restarts_is_waited_for(orchestrator: FakeOrchestrator) -> None:
    link = link_to(orchestrator)
    await orchestrator.halt()
    pulling = asyncio.create_task(asyncio.to_thread(batches(link).batch, 1))
    await orchestrator.until(lambda: link.failures >= 2)
    await orchestrator.start()
    assert isinstance(await pulling, RankBatch)


async def test_no_pause_between_two_tries_is_longer_than_a_second(orchestrator: FakeOrchestrator) -> None:
    watch, pauses = Watch(), []

    class Hurried(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 7:
                watch.fail(TimeoutError("enough"))
            return self.is_set()

    watch.failed = Hurried()
    await orchestrator.halt()
    with pytest.raises(TimeoutError, match="enough"):
        await asyncio.to_thread(batches(link_to(orchestrator, watch=watch)).batch, 1)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_an_address_that_takes_no_connection_is_not_waited_for_as_long_as_an_answer() -> None:
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = full.getsockname()[1]
        # The kernel answers nobody once as many wait to be accepted as may.
        with suppress(TimeoutError):
            for _ in range(8):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1.0))
        began = time.monotonic()
        with pytest.raises(Unreachable, match="TimeoutError"):
            Link(f"http://127.0.0.1:{port}", {}, deadline_s=1.0, watch=Watch()).once("GET", "/", timeout_s=60.0)
        assert time.monotonic() - began < 30.0


async def test_orchestrator_that_says_nothing_ends_the_wait(orchestrator: FakeOrchestrator) -> None:
    await orchestrator.halt()
    link = link_to(orchestrator, deadline_s=0.3)
    with pytest.raises(OrchestratorLost, match=r"GET /trainer/batch.*no answer from 127.0.0.1"):
        await asyncio.to_thread(batches(link).batch, 1)


async def test_server_errors_count_as_no_answer(orchestrator: FakeOrchestrator) -> None:
    orchestrator.broken = 2
    link = link_to(orchestrator)
    assert isinstance(await asyncio.to_thread(batches(link).batch, 1), RankBatch)
    assert link.failures == 2


async def test_reports_arrive_in_order_across_an_outage(orchestrator: FakeOrchestrator) -> None:
    watch = Watch()
    link = link_to(orchestrator, watch=watch)
    outbox = Outbox(link, watch)
    await orchestrator.halt()
    outbox.announce(announcement(1))
    for step in range(1, 4):
        outbox.report(report(step))
    await orchestrator.until(lambda: link.failures >= 1)
    await orchestrator.start()
    assert await asyncio.to_thread(outbox.flush, 90.0)
    assert [one.step for one in orchestrator.reports] == [1, 2, 3]
    assert [one.version for one in orchestrator.announcements] == [1]


async def test_flush_gives_up_at_its_deadline(orchestrator: FakeOrchestrator) -> None:
    await orchestrator.halt()
    outbox = Outbox(link_to(orchestrator), Watch())
    outbox.report(report(1))
    assert not await asyncio.to_thread(outbox.flush, 0.2)


async def test_newest_version_is_announced_again_after_a_lost_call(orchestrator: FakeOrchestrator) -> None:
    watch = Watch()
    link = link_to(orchestrator, watch=watch)
    outbox = Outbox(link, watch)
    outbox.announce(announcement(4))
    assert await asyncio.to_thread(outbox.flush, 90.0)
    outbox.remind()
    assert await asyncio.to_thread(outbox.flush, 90.0)
    assert len(orchestrator.announcements) == 1, "nothing was lost, so nothing is repeated"
    await orchestrator.halt()
    pulling = asyncio.create_task(asyncio.to_thread(link.patiently, "GET", "/trainer/batch?step=1&rank=0&wait=1"))
    await orchestrator.until(lambda: link.failures >= 1)
    await orchestrator.start()
    await pulling
    outbox.remind()
    assert await asyncio.to_thread(outbox.flush, 90.0)
    assert [one.version for one in orchestrator.announcements] == [4, 4]


async def test_failure_of_the_outbox_reaches_the_loop(orchestrator: FakeOrchestrator) -> None:
    watch = Watch()
    orchestrator.identity = RunIdentity("test", RUN_UID, 2)
    outbox = Outbox(link_to(orchestrator, watch=watch), watch)
    outbox.report(report(1))
    await orchestrator.until(watch.failed.is_set)
    with pytest.raises(Fenced):
        watch.check()
    with pytest.raises(Fenced):
        await asyncio.to_thread(batches(link_to(orchestrator, watch=watch)).batch, 1)


def test_url_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="orchestrator_url: found 'localhost:8000'"):
        Link("localhost:8000", {}, deadline_s=1, watch=Watch())
