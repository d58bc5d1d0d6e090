"""A monitor's process that works, fails, hangs and dies; the process is a script, everything else is real."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from echorl_orchestrator.monitors.feed import Feed, FeedLimits
from echorl_orchestrator.monitors.link import HIDDEN, Launch
from echorl_orchestrator.monitors.rows import Row
from echorl_testing.orchestrator import fake_monitor
from echorl_testing.waiting import until

SECRET = "s3cr3t"
LIMITS = FeedLimits(first_wait_s=0.01, longest_wait_s=0.02)


def row(at: int) -> Row:
    return Row(axis="step", at=at, values={"reward": at / 10})


def launch(folder: Path, does: str) -> Launch:
    return Launch(
        "wandb",
        {"does": does, "kept": str(folder / "kept")},
        {"A_SECRET": SECRET},
        command=(sys.executable, "-S", fake_monitor.__file__),
    )


def kept(folder: Path) -> list[int]:
    file = folder / "kept"
    return [json.loads(line)["at"] for line in file.read_text().splitlines()] if file.exists() else []


@asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(feed.close(), 60)


async def test_rows_arrive_in_order_and_what_waits_at_the_end_too(tmp_path: Path) -> None:
    feed = Feed(launch(tmp_path, "works"), LIMITS)
    async with running(feed):
        for at in (1, 2, 3):
            feed.put(row(at))
        await until(lambda: kept(tmp_path), 60)
        for at in range(4, 40):
            feed.put(row(at))
    assert kept(tmp_path) == list(range(1, 40))
    assert (feed.written, feed.dropped, feed.failures) == (39, 0, 0)


async def test_a_process_that_dies_is_started_again_and_loses_nothing(tmp_path: Path) -> None:
    feed = Feed(launch(tmp_path, "dies"), LIMITS)
    with capture_logs() as logs:
        async with running(feed):
            for at in (1, 2, 3):
                feed.put(row(at))
            await until(lambda: len(kept(tmp_path)) == 3, 60)
    assert kept(tmp_path) == [1, 2, 3]
    assert (feed.dropped, feed.failures) == (0, 1)
    assert [entry["event"].partition(",")[0] for entry in logs] == ["a monitor failed", "a monitor works again"]
    assert f"it said last: out of memory near {HIDDEN}" in logs[0]["reason"]
    assert SECRET not in str(logs)


@pytest.mark.parametrize(
    ("does", "reason"),
    [("half", "an answer that cannot be read"), ("other", "an answer that cannot be read"), ("long", "without an end")],
)
async def test_an_answer_that_nobody_can_read_ends_the_process_and_not_the_run(
    tmp_path: Path, does: str, reason: str
) -> None:
    feed = Feed(launch(tmp_path, does), LIMITS)
    with capture_logs() as logs:
        async with running(feed):
            feed.put(row(1))
            feed.put(row(2))
            await until(lambda: len(kept(tmp_path)) == 2, 60)
    assert (feed.dropped, feed.failures) == (0, 1)
    assert reason in logs[0]["reason"]


async def test_a_process_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    feed = Feed(launch(tmp_path, "hangs"), replace(LIMITS, row_s=3.0))
    async with running(feed):
        feed.put(row(1))
        feed.put(row(2))
        await until(lambda: len(kept(tmp_path)) == 2, 60)
    assert (feed.written, feed.failures) == (2, 1)


async def test_a_monitor_that_never_opens_is_given_up_and_its_rows_are_counted(tmp_path: Path) -> None:
    now = iter(range(0, 1_000_000, 600))
    feed = Feed(launch(tmp_path, "refuses"), replace(LIMITS, give_up_s=1800.0), clock=lambda: float(next(now)))
    with capture_logs() as logs:
        async with running(feed):
            feed.put(row(1))
            await until(lambda: feed.off, 60)
            feed.put(row(2))
    assert (feed.failures, feed.dropped, feed.written) == (4, 2, 0)
    assert [entry["log_level"] for entry in logs] == ["warning", "warning", "error"]
    assert logs[0]["reason"] == f"no entry with {HIDDEN}"


async def test_the_oldest_rows_make_room_and_putting_never_waits(tmp_path: Path) -> None:
    feed = Feed(launch(tmp_path, "works"), replace(LIMITS, rows=3))
    for at in range(1, 6):
        feed.put(row(at))
    assert feed.dropped == 2
    async with running(feed):
        await until(lambda: len(kept(tmp_path)) == 3, 60)
    assert kept(tmp_path) == [3, 4, 5]


async def test_an_end_that_takes_too_long_ends_the_process(tmp_path: Path) -> None:
    feed = Feed(launch(tmp_path, "hangs"), LIMITS)
    task = asyncio.create_task(feed.run())
    feed.put(row(1))
    feed.put(row(2))
    await until(lambda: feed.written == 1, 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    closing = asyncio.create_task(feed.close())
    done, _ = await asyncio.wait([closing], timeout=0.2)
    assert not done
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert (feed.written, feed.dropped) == (1, 1)
