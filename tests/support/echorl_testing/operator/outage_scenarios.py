"""The API server fails the operator in some way: while a run starts, and while a rank is lost and the user edits."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from echorl_operator import names
from echorl_testing.kube import faults
from echorl_testing.kube.faults import Fault
from echorl_testing.operator.fault_campaign import Course, Scenario, same_end, unharmed
from echorl_testing.operator.run_life import COMPRESSED, PATIENCE_S, Field, Life, ended

OUTAGES: Mapping[str, Callable[[], Fault]] = {
    "500 for everything": lambda: faults.fail(500),
    "503 for everything": lambda: faults.fail(503),
    "403 for everything": lambda: faults.fail(403),
    "401 for everything": lambda: faults.fail(401),
    "429 with Retry-After 1": lambda: faults.throttle(1),
    "429 for writes, Retry-After 3600": lambda: faults.throttle(3600, faults.writes),
    "connections are dropped": faults.drop,
    "requests hang": faults.hang,
    "500 for writes": lambda: faults.fail(500, faults.writes),
    "403 for writes": lambda: faults.fail(403, faults.writes),
    "409 for every apply": faults.conflict,
    "409 for every status": lambda: faults.conflict(faults.of(resource=names.PLURAL, subresource="status")),
    "writes happen, replies are lost": lambda: faults.drop(faults.writes, after=True),
    "every watch begins with ERROR 500": faults.stream_error,
    "every watch is answered 410": faults.expire,
    "lists fail, watches end": lambda: faults.fail(500, faults.lists_and_watches),
    "watches are silent": faults.silence,
    "watches are 3 s behind": lambda: faults.delay(3),
}
STORMS: Mapping[str, int | None] = {
    "410 storm in running watches": 410,
    "ERROR 500 storm in running watches": 500,
    "watches are cut again and again": None,
}
STORM_EVERY_S = 0.3
WRITES_A_SECOND = 6
"""That a run may cost while the API server refuses it."""
_EITHER_WAY = frozenset({"ControllerRevision", "ConfigMap", "timeline"})
"""What depends on whether the edit or the loss of the rank is seen first; both are right."""


def outages(reference: "asyncio.Future[dict[str, Any]]") -> dict[str, Scenario]:
    """All scenarios of this kind; ``reference`` is the end of a life without faults."""
    found: dict[str, Scenario] = {name: partial(_outage, make=make, end=reference) for name, make in OUTAGES.items()}
    found |= {name: partial(_storm, code=code, end=reference) for name, code in STORMS.items()}
    return found


async def undisturbed(field: Field, started: "asyncio.Future[float]") -> dict[str, Any]:
    """How such a life ends without a fault; ``started`` gets how long it took to start."""
    async with field.life() as life, life.operated():
        started_at = time.monotonic()
        await life.create()
        await life.running(1)
        started.set_result(time.monotonic() - started_at)
        await _trouble(life)
        await _mended(life, PATIENCE_S)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return life.end()


async def _outage(course: Course, make: Callable[[], Fault], end: "asyncio.Future[dict[str, Any]]") -> str:
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(course.field.life())
        operator = await stack.enter_async_context(life.operated(COMPRESSED))
        with life.proxy.fault(make()) as fault:
            life.proxy.end_watches()
            await life.create()
            await life.until("the fault strikes", lambda: fault.hits)
            await course.hold(life)
            assert operator.watchdog.not_alive() is None
        first = await _timed(partial(life.running, 1, await course.patience_s()))
        during, begun = life.writes(), time.monotonic()
        with life.proxy.fault(make()):
            life.proxy.end_watches()
            await _trouble(life)
            await course.hold(life)
            during, lasted_s = life.writes() - during, time.monotonic() - begun
        second = await _timed(partial(_mended, life, await course.patience_s()))
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        same_end(life, await asyncio.shield(end), but=_EITHER_WAY)
        assert during <= WRITES_A_SECOND * lasted_s + 40, f"{during} writes in {lasted_s:.0f} s of the fault"
        await life.until("the operator is ready", lambda: operator.watchdog.not_ready() is None)
        recovered = f"as without it {first:.0f} s and {second:.0f} s after its end"
        return f"{recovered}; {during} tries to write in {lasted_s:.0f} s of it, {life.writes()} writes in all"


async def _storm(course: Course, code: int | None, end: "asyncio.Future[dict[str, Any]]") -> str:
    """Running watches are ended all the time, from before the run is made until it is mended."""

    async def rage() -> None:
        while True:
            life.proxy.end_watches(code)
            await asyncio.sleep(STORM_EVERY_S)

    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(course.field.life())
        await stack.enter_async_context(life.operated(COMPRESSED))
        storm = asyncio.create_task(rage(), name="storm")
        stack.push_async_callback(ended, storm)
        await life.create()
        await life.running(1)
        await _trouble(life)
        await _mended(life, PATIENCE_S)
        await ended(storm)
        lists = sum(one.request.verb == "list" for one in life.proxy.records)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        same_end(life, await asyncio.shield(end), but=_EITHER_WAY)
        return f"went on all through it; {lists} lists, {life.writes()} writes"


async def _trouble(life: Life) -> None:
    """What happens to a run in the meantime: a rank crashes, and its user wants another engine."""
    await life.lose_a_rank(1)
    await life.edit(inference={"replicas": 3})


async def _mended(life: Life, seconds: float) -> None:
    """The gang runs again, and there are three engines."""
    deadline = time.monotonic() + seconds
    await life.running(2, seconds)
    left = max(1.0, deadline - time.monotonic())
    await life.until("a third engine", lambda: len(life.pods(names.PodRole.INFERENCE)) == 3, left)


async def _timed(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    await action()
    return time.monotonic() - started
