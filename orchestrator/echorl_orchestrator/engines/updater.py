"""Brings one engine to the newest policy version: stage while generating, then pause, apply, resume, probe.

Where the engine's workers can put a version in place between two steps, there is no pause.

Every engine has a task of its own, so that one that hangs or fails delays no other. Whatever happens after a pause was
asked for, a resume is sent; if this process dies instead, the lease in the engine's middleware ends the pause.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from echorl_core.faults import fault_point
from echorl_core.wire.engine import StageStatus
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.engines import probe
from echorl_orchestrator.engines.admin import AdminClient, AdminError
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.engine import Engine, EngineState
from echorl_orchestrator.engines.swap import UpdateError, swap, swap_in_place
from echorl_orchestrator.engines.timing import Timing

log = structlog.get_logger()

_UPDATED_FROM = frozenset({EngineState.SYNCING, EngineState.SERVING, EngineState.QUARANTINED})


@dataclass(frozen=True)
class Limits:
    """Seconds from the orchestrator's config: the pause's lease, and the bound of each long part of an update."""

    lease_s: float
    deadline_s: float


@dataclass(frozen=True)
class Goal:
    """What the whole pool is at: the newest announced policy, and the lowest version that engines serve (-1: none)."""

    target: Callable[[], PolicyAnnouncement | None]
    floor: Callable[[], int]


class Updater:
    """Keeps one engine at the newest announced version, for as long as the engine lives."""

    def __init__(
        self,
        engine: Engine,
        admin: AdminClient,
        *,
        goal: Goal,
        changes: Changes,
        limits: Limits,
        timing: Timing,
        on_update: Callable[[dict[str, Any]], None],
    ) -> None:
        self._engine = engine
        self._admin = admin
        self._goal = goal
        self._changes = changes
        self._limits = limits
        self._timing = timing
        self._on_update = on_update

    async def follow(self) -> None:
        """Update whenever the engine does not hold the newest version, until cancelled or the engine is lost.

        The client's timer swallows a cancellation that comes at the moment of a time-out, so the state counts too.
        """
        failures = 0
        while not self._engine.lost:
            target = await self._next()
            try:
                await self._bring(target)
                failures = 0
            except (UpdateError, AdminError) as error:
                failures += 1
                if not self._engine.lost:
                    await self._failed(error, failures)
                    await self._back_off(target, failures)

    async def _next(self) -> PolicyAnnouncement:
        """What the engine is to be brought to. One that has answered what cannot be true waits, longer each time."""
        target = await self._changes.until(self._due)
        if self._engine.state is EngineState.QUARANTINED and self._engine.impossible:
            await asyncio.sleep(self._pause_s(self._engine.impossible))
            target = await self._changes.until(self._due)
        return target

    def _pause_s(self, times: int) -> float:
        """Before the next try, after something went wrong for this many times."""
        return min(self._timing.retry_first_s * 2.0 ** min(times - 1, 32), self._timing.retry_max_s)

    def _due(self) -> PolicyAnnouncement | None:
        target = self._goal.target()
        if target is None or self._engine.state not in _UPDATED_FROM:
            return None
        if self._engine.state is EngineState.SERVING and self._engine.held == target.policy:
            return None
        return target

    async def _bring(self, target: PolicyAnnouncement) -> None:
        """One update to ``target``; raises UpdateError, or AdminError if the engine was not touched."""
        engine = self._engine
        record: dict[str, Any] = {
            "engine": engine.address,
            "attempt": target.attempt,
            "version": target.version,
            "stage_s": 0.0,
            "received_bytes": 0,
            "delta": "none",
            "pause_s": 0.0,
            "apply_s": 0.0,
            "running_at_pause": 0,
        }
        if engine.held is not None and engine.held.attempt != target.attempt:
            await self._admin.abort_requests()
        if engine.held != target.policy:
            record["stage_s"], workers = await self._stage(target)
            record["received_bytes"] = sum(worker.received_bytes for worker in workers)
            # Those that find another one's download have nothing to say of the delta.
            record["delta"] = next((worker.delta for worker in workers if worker.delta != "none"), "none")
            record["broadcast"] = all(worker.broadcast for worker in workers)
            in_place = all(worker.in_place for worker in workers)
            fault_point("orchestrator.staged")
            if engine.state is EngineState.DRAINING:
                raise UpdateError("it was given notice while a version was staged")
            # A quarantine may have come while the version was being staged.
            serves = engine.state is EngineState.SERVING
            engine.move(EngineState.UPDATING if serves else EngineState.SYNCING, error=engine.error)
            record.update(await self._swap(target, in_place=in_place))
        elif engine.paused:
            await self._admin.resume()
        engine.paused = False
        record.update(await self._probe(target))
        self._serve(target)
        log.info("engine updated", **record)
        self._on_update(record)

    async def _swap(self, target: PolicyAnnouncement, *, in_place: bool) -> dict[str, float]:
        if in_place and not self._engine.paused:
            return await swap_in_place(self._engine, self._admin, target, self._limits.deadline_s)
        return await swap(self._engine, self._admin, target, self._limits.lease_s, self._limits.deadline_s)

    async def _stage(self, target: PolicyAnnouncement) -> tuple[float, list[StageStatus]]:
        """Have every worker fetch ``target``; seconds it took, and what they say of it."""
        started = time.monotonic()
        await self._admin.stage(target, self._limits.deadline_s)
        wanted = target.policy
        while (left := started + self._limits.deadline_s - time.monotonic()) > 0:
            asked = time.monotonic()
            workers = await self._admin.stage_status(min(left, self._timing.stage_wait_s))
            for worker in workers:
                # A failure of an earlier version may still be shown until the worker has begun with this one.
                if worker.state == "failed" and worker.version in {None, target.version}:
                    raise UpdateError(f"stage of version {target.version} failed: {worker.error}")
            if workers and all(worker.is_staged(wanted) for worker in workers):
                return time.monotonic() - started, workers
            await asyncio.sleep(max(0.0, asked + self._timing.stage_again_s - time.monotonic()))
        raise UpdateError(f"stage of version {target.version}: not done in {self._limits.deadline_s} s")

    async def _probe(self, target: PolicyAnnouncement) -> dict[str, float | None]:
        """Compare the probe; what it raises taints, since the engine's weights are then not what they should be."""
        if target.probe is None:
            return {"probe_s": 0.0, "max_probe_error": None}
        started = time.monotonic()
        try:
            worst = await probe.check(self._admin, target.probe, self._limits.deadline_s)
        except (probe.ProbeMismatch, AdminError) as error:
            raise UpdateError(f"version {target.version}: {error}", tainted=True) from error
        return {"probe_s": time.monotonic() - started, "max_probe_error": worst}

    def _serve(self, target: PolicyAnnouncement) -> None:
        """Give the engine traffic, unless it came late with a version below what the others serve by now."""
        engine = self._engine
        if engine.lost:
            return
        engine.held = target.policy
        if engine.state is EngineState.UPDATING or target.version >= self._goal.floor():
            engine.serve()

    async def _failed(self, error: UpdateError | AdminError, failures: int) -> None:
        """Decide what the engine may still do after a failed update, and drop what is staged."""
        engine = self._engine
        log.warning("engine update failed", engine=engine.address, error=str(error), failures=failures)
        serves = engine.state in {EngineState.SERVING, EngineState.UPDATING}
        tainted = isinstance(error, UpdateError) and error.tainted
        if tainted or (serves and failures >= self._timing.update_tries):
            engine.move(EngineState.QUARANTINED, error=str(error))
        elif engine.state is EngineState.UPDATING:
            engine.serve(error=str(error))
        else:
            engine.note(str(error))
        calls = [self._admin.abort()]
        if engine.state is EngineState.QUARANTINED:
            calls.append(self._admin.abort_requests())
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AdminError):
                raise outcome

    async def _back_off(self, tried: PolicyAnnouncement, failures: int) -> None:
        """Wait before the next try; a version newer than the one tried is tried at once."""

        def newer() -> PolicyAnnouncement | None:
            target = self._goal.target()
            return target if target is not None and target.policy != tried.policy else None

        try:
            await self._changes.until(newer, self._pause_s(failures))
        except TimeoutError:
            return
