import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from echorl_operator.kube import errors
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.reconcile.breaker import Breaker
from echorl_operator.reconcile.queue import QueueSettings, WorkQueue
from echorl_operator.reconcile.workers import Workers, WorkerSettings
from echorl_testing.waiting import until

KEYS = [RunKey("ns", str(number)) for number in range(6)]


class Plant:
    """Workers on a queue with a breaker; passes do what the test says."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.queue = WorkQueue(self.metrics, QueueSettings(first_retry_s=0.01, longest_retry_s=0.1))
        self.down = False
        self.passes: Counter[RunKey] = Counter()
        self.does: Callable[[RunKey], Awaitable[float | None]] = self._nothing
        self.breaker = Breaker(
            self._probe, on_open=self.queue.pause, on_close=self._again, metrics=self.metrics, interval_s=0.01
        )
        settings = WorkerSettings(workers=3, pass_s=3.0, throttled_s=0.05)
        self.workers = Workers(self.queue, self.breaker, self._pass, self.metrics, settings)

    def ended(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("echorl_operator_reconciles_total", {"result": result}) or 0.0

    async def _probe(self) -> None:
        if self.down:
            raise errors.Unavailable("get /x", "down")

    def _again(self) -> None:
        self.queue.add_all(KEYS)
        self.queue.resume()

    async def _nothing(self, _: RunKey) -> float | None:
        return None

    async def _pass(self, key: RunKey) -> float | None:
        self.passes[key] += 1
        return await self.does(key)


@pytest.fixture
async def plant() -> AsyncIterator[Plant]:
    found = Plant()
    tasks = [asyncio.ensure_future(found.workers.run()), asyncio.ensure_future(found.breaker.run())]
    yield found
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_pass_says_when_to_look_again(plant: Plant) -> None:
    async def soon(_: RunKey) -> float:
        return 0.01

    plant.does = soon
    plant.queue.add(KEYS[0])
    await until(lambda: plant.passes[KEYS[0]] >= 3)
    assert plant.ended("ok") >= 2


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (errors.Conflict("apply /x", "no"), "Conflict"),
        (errors.Refused("apply /x", "exceeded quota"), "Refused"),
        (errors.Unavailable("apply /x", "a webhook failed"), "Unavailable"),
        (errors.TooManyRequests("apply /x", "slow down", retry_after_s=0.02), "throttled"),
        (RuntimeError("bug"), "error"),
    ],
)
async def test_a_failure_is_tried_again_and_stops_nobody_else(plant: Plant, error: Exception, result: str) -> None:
    async def fails(key: RunKey) -> None:
        if key == KEYS[0] and plant.passes[key] < 4:
            raise error

    plant.does = fails
    for key in KEYS:
        plant.queue.add(key)
    await until(lambda: plant.passes[KEYS[0]] == 4 and all(plant.passes[key] == 1 for key in KEYS[1:]))
    assert plant.ended(result) == 3
    await until(lambda: plant.queue.failures(KEYS[0]) == 0)
    assert not plant.breaker.open


async def test_a_pass_has_a_deadline(plant: Plant) -> None:
    async def hangs(key: RunKey) -> None:
        if plant.passes[key] == 1:
            await asyncio.Event().wait()

    plant.does = hangs
    plant.queue.add(KEYS[0])
    await until(lambda: plant.passes[KEYS[0]] == 2)
    assert plant.ended("timeout") == 1


async def test_an_outage_stops_work_and_counts_against_nobody(plant: Plant) -> None:
    async def writes(_: RunKey) -> None:
        if plant.down:
            raise errors.Unavailable("apply /x", "no reply")

    plant.does, plant.down = writes, True
    for key in KEYS:
        plant.queue.add(key)
    await until(lambda: plant.breaker.open)
    before = plant.passes.total()
    assert before <= 3, "what ran when it opened"
    assert all(plant.queue.failures(key) == 0 for key in KEYS)
    plant.queue.add(KEYS[0], urgent=True)
    await until(lambda: plant.metrics.registry.get_sample_value("echorl_operator_api_breaker_open") == 1)
    assert plant.passes.total() == before
    plant.down = False
    await until(lambda: all(plant.passes[key] >= 1 for key in KEYS) and plant.ended("ok") >= len(KEYS))
    assert plant.ended("unavailable") == before


async def test_passes_over_one_run_never_overlap(plant: Plant) -> None:
    inside: set[RunKey] = set()

    async def careful(key: RunKey) -> None:
        assert key not in inside
        inside.add(key)
        await asyncio.sleep(0)
        plant.queue.add(key)
        await asyncio.sleep(0)
        inside.discard(key)
        if plant.passes[key] > 20:
            plant.queue.pause()

    plant.does = careful
    for key in KEYS:
        plant.queue.add(key)
    await until(lambda: plant.queue.paused)
    assert plant.ended("error") == 0
