"""A cluster full of runs: memory, a storm of edits, failover, a start, and nothing to do."""

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.operator_scale import processes, submitting
from benchmarks.operator_scale.figures import quantile
from benchmarks.operator_scale.ground import ground
from benchmarks.operator_scale.operating import OperatorProcess, Writes
from benchmarks.operator_scale.submitting import Client, Shape, client
from benchmarks.operator_scale.watching import Sightings, watching
from echorl_operator.observed.runs import RunKey

_DEADLINE_S = 1800.0
_FOREIGN = "foreign"
_AT_A_TIME = 20
"""Runs that are created before all their pods must be ready: what is measured here is not how fast they come."""


class Life:
    """One cluster and the operator that leads in it."""

    def __init__(self, kubeconfig: Path, folder: Path, user: Client, seen: Sightings, shape: Shape) -> None:
        self.kubeconfig, self.folder, self.user, self.seen, self.shape = kubeconfig, folder, user, seen, shape
        self.runs: list[RunKey] = []
        self._engines = shape.engines
        self._turns: Counter[RunKey] = Counter()
        self.operator: OperatorProcess

    async def __aenter__(self) -> "Life":
        self.operator = await OperatorProcess.start(self.kubeconfig, self.folder, "operator")
        await self.operator.leads()
        await self.operator.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.operator.end()

    async def grow(self, to: int, where: Sequence[str]) -> float:
        """Create runs until all are Running and nothing is left to do; seconds until their pods were ready."""
        started = time.monotonic()
        self.seen.check = self.operator.check
        while len(self.runs) < to:
            more = submitting.keys(len(self.runs), min(_AT_A_TIME, to - len(self.runs)), where)
            await self.user.create(more, self.shape, lambda *_: None)
            self.runs += more
            await self.seen.until("pods are ready", self._all_ready, _DEADLINE_S)
        ready_s = time.monotonic() - started
        await self.operator.settled()
        phases = await self.user.phases()
        late = [key for key in self.runs if phases.get(key) != "Running"]
        if late:
            raise RuntimeError(f"{len(late)} runs are not Running: {late[:3]}")
        return ready_s

    def _all_ready(self) -> bool:
        return len(self.seen.ready) >= len(self.runs) * self.shape.pods

    def memory(self) -> dict[str, float]:
        """Of the operator: now, and at most so far; MB."""
        pid = self.operator.pid
        return {"rss_mb": processes.resident_mb(pid), "peak_mb": processes.resident_mb(pid, "VmHWM")}

    async def idle(self, seconds: float) -> dict[str, Any]:
        """What the operator does while nothing happens."""
        before, cpu = await self.operator.read(), self.operator.cpu_seconds()
        started = time.monotonic()
        await asyncio.sleep(seconds)
        cpu_s, took = self.operator.cpu_seconds() - cpu, time.monotonic() - started
        after = await self.operator.read()
        key = "reconciles_total"
        return {
            "seconds": took,
            "writes": Writes.of(after.calls, before.calls).total,
            "passes": after.values.get(key, 0.0) - before.values.get(key, 0.0),
            "core_percent": 100 * cpu_s / took,
            **self.memory(),
        }

    def _edit(self) -> dict[str, Any]:
        """Another number of engines than before."""
        self._engines = 2 * self.shape.engines + 1 - self._engines
        return {"inference": {"replicas": self._engines}}

    async def storm(self) -> dict[str, Any]:
        """All runs are edited, as fast as the user's connections can; time from each edit to its first child write."""
        edited: dict[RunKey, float] = {}
        self.seen.check = self.operator.check
        known = {key: len(times) for key, times in self.seen.revisions.items()}
        began = time.monotonic()
        await self.user.edit(self.runs, self._edit(), edited.__setitem__)
        sent_s = time.monotonic() - began
        revisions = self.seen.revisions
        await self.seen.until(
            "every edit has led to a write", lambda: all(len(revisions[key]) > known[key] for key in self.runs), 120.0
        )
        # A write may be seen before the reply to the edit is.
        waits = sorted(max(0.0, revisions[key][known[key]] - edited[key]) for key in self.runs)
        await self.operator.settled()
        return {
            "edits": len(self.runs),
            "sent_s": sent_s,
            "p50_s": quantile(waits, 0.5),
            "p99_s": quantile(waits, 0.99),
            "max_s": waits[-1],
        }

    async def edits(self, over: Callable[[], bool]) -> list[float]:
        """Edit one run after the other until it is over; seconds from each edit to its first child write, sorted."""
        waits: list[float] = []
        revisions, edited = self.seen.revisions, dict[RunKey, float]()
        for key in itertools.cycle(self.runs):
            if over():
                return sorted(waits)
            known = len(revisions[key])
            self._turns[key] += 1
            replicas = self.shape.engines + self._turns[key] % 2
            await self.user.edit([key], {"inference": {"replicas": replicas}}, edited.__setitem__)
            await self.seen.until("an edit has led to a write", lambda: len(revisions[key]) > known, 60.0)  # noqa: B023
            waits.append(max(0.0, revisions[key][known] - edited[key]))
        raise AssertionError("there is no run")

    async def fail_over(self, name: str) -> float:
        """Kill the leader without warning; seconds until the one in reserve has written a child."""
        reserve = await OperatorProcess.start(self.kubeconfig, self.folder, name)
        await reserve.ready()
        key = self.runs[0]
        known = len(self.seen.revisions[key])
        killed = time.monotonic()
        await self.operator.end(signal.SIGKILL)
        self.operator = reserve
        self.seen.check = reserve.check
        await self.user.edit([key], {"inference": {"replicas": 2 * self.shape.engines + 2}}, lambda *_: None)
        await self.seen.until("the new leader writes", lambda: len(self.seen.revisions[key]) > known, 60.0)
        took = self.seen.revisions[key][known] - killed
        await self.operator.settled()
        # As all the others are, so that the next storm changes it.
        await self.user.edit([key], {"inference": {"replicas": self._engines}}, lambda *_: None)
        await self.operator.settled()
        return took

    async def restart(self, name: str) -> dict[str, float]:
        """End the operator well and start another one: to the first pass over a run, and to the last."""
        await self.operator.end()
        self.operator = await OperatorProcess.start(self.kubeconfig, self.folder, name)
        first = await self.operator.until("a first pass", "reconciles_total", 1.0, 120.0)
        last = await self.operator.until("a pass over each", "reconciles_total", len(self.runs), 300.0)
        started = self.operator.started
        return {"first_pass_s": first - started, "all_passes_s": last - started, **self.memory()}


async def life(options: Any, folder: Path, report: Any) -> None:
    """Memory at 0, 100 and 200 runs; storm; failover; start beside foreign pods."""
    where, shape = submitting.namespaces(options.namespaces), options.shape
    namespaces = [*where, _FOREIGN]
    async with (
        ground(namespaces, options.runs * shape.pods) as place,
        client(place.kubeconfig) as user,
        watching(user.connection) as seen,
        Life(place.kubeconfig, folder, user, seen, shape) as one,
    ):
        report("memory", runs=0, **one.memory(), torch=_torch(one.operator.pid))
        for count in sorted({min(100, options.runs), options.runs}):
            ready_s = await one.grow(count, where)
            report("memory", runs=count, ready_s=ready_s, **one.memory())
        report("idle", runs=len(one.runs), pods=shape.pods, **await one.idle(options.idle_s))
        for _ in range(options.storms):
            report("storm", **await one.storm())
        for number in range(options.failovers):
            report("failover", seconds=await one.fail_over(f"operator-{number + 2}"))
        await user.add_foreign_pods(_FOREIGN, options.foreign_pods)
        for number in range(options.starts):
            report("start", foreign_pods=options.foreign_pods, **await one.restart(f"again-{number}"))


async def edits(options: Any, folder: Path, report: Any) -> None:
    """Runs are edited one after the other: while nothing else happens, and while many others start."""
    where, shape = submitting.namespaces(options.namespaces), options.shape
    async with (
        ground(where, (options.edited_runs + options.runs) * shape.pods) as place,
        client(place.kubeconfig) as user,
        watching(user.connection) as seen,
        Life(place.kubeconfig, folder, user, seen, shape) as one,
    ):
        await one.grow(options.edited_runs, where)
        calm_until = time.monotonic() + options.idle_s
        report("edits", while_="calm", **_waits(await one.edits(lambda: time.monotonic() > calm_until)))
        await one.operator.settled()
        storm = submitting.keys(options.edited_runs, options.runs, where)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(user.create(storm, shape, lambda *_: None))
            waits = await one.edits(lambda: all(key in seen.orchestrators for key in storm))
        took = time.monotonic() - began
        report("edits", while_=f"{options.runs} runs start", storm_s=took, **_waits(waits))


def _waits(found: list[float]) -> dict[str, float]:
    return {"edits": len(found), "p50_s": quantile(found, 0.5), "p99_s": quantile(found, 0.99), "max_s": found[-1]}


async def many(options: Any, folder: Path, report: Any) -> None:
    """As many idle runs as the machine carries."""
    where, shape = submitting.namespaces(options.namespaces), options.idle_shape
    async with (
        ground(where, options.idle_runs * shape.pods) as place,
        client(place.kubeconfig) as user,
        watching(user.connection) as seen,
        Life(place.kubeconfig, folder, user, seen, shape) as one,
    ):
        empty = one.memory()
        ready_s = await one.grow(options.idle_runs, where)
        idle = await one.idle(options.idle_s)
        per_run = (idle["rss_mb"] - empty["rss_mb"]) / options.idle_runs * 1000
        report("idle", runs=options.idle_runs, pods=shape.pods, ready_s=ready_s, kb_per_run=per_run, **idle)


def _torch(pid: int) -> bool:
    return any("torch" in file for file in processes.mapped(pid))
