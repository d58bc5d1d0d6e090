"""One address from its first answer to its end: who answers there, is it healthy, has it been restarted or lost."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import structlog

from echorl_core.wire.engine import EngineIdentity
from echorl_core.wire.weights import PolicyId
from echorl_orchestrator.engines.admin import AdminClient, AdminError
from echorl_orchestrator.engines.engine import Engine, EngineState
from echorl_orchestrator.engines.engine_metrics import EngineMetrics
from echorl_orchestrator.engines.timing import Timing

log = structlog.get_logger()

REFUSALS = 2
"""Refused connections in a row after which an engine is lost."""


class Registry(Protocol):
    """Where engines are kept: the pool."""

    def register(self, address: str) -> Engine:
        """A fresh engine for the address, in place of a lost one."""
        ...

    def twin(self, engine: Engine, boot_id: str) -> str | None:
        """Another address at which the same start of the same server is already known."""
        ...

    def stands_in(self, engine: Engine) -> bool:
        """Whether another engine serves, and goes on to."""
        ...


class EngineMonitor:
    """Looks at one address as long as a name resolves to it."""

    def __init__(
        self,
        address: str,
        admin: AdminClient,
        *,
        run_uid: str,
        registry: Registry,
        follow: Callable[[Engine], Coroutine[Any, Any, None]],
        metrics: EngineMetrics,
        timing: Timing,
    ) -> None:
        self._address = address
        self._admin = admin
        self._run_uid = run_uid
        self._registry = registry
        self._follow = follow
        self._metrics = metrics
        self._timing = timing

    async def run(self) -> None:
        """Until cancelled (the address has vanished, or the pool closes)."""
        engine = self._registry.register(self._address)
        try:
            while True:
                identity = await self._first_answer(engine)
                if engine.state is EngineState.LOST:
                    engine = self._registry.register(self._address)
                engine.boot_id = identity.boot_id
                engine.held = identity.policy
                engine.fresh = engine.held is None
                engine.paused = identity.paused
                engine.move(EngineState.STARTING)
                await self._live(engine)
        finally:
            if engine.state is not EngineState.LOST:
                engine.move(EngineState.LOST, error="no longer looked at")

    async def _first_answer(self, engine: Engine) -> EngineIdentity:
        """The identity of an engine of this run; whatever else is found at the address goes into ``engine.error``."""
        while True:
            try:
                identity = await self._admin.identity()
            except AdminError as error:
                reason = str(error)
            else:
                twin = self._registry.twin(engine, identity.boot_id)
                if identity.run_uid != self._run_uid:
                    reason = f"belongs to run {identity.run_uid!r}, accepted is {self._run_uid!r}"
                elif twin is not None:
                    reason = f"is the engine that is already known at {twin}"
                else:
                    return identity
            # Why it was lost says more than why it does not answer since.
            if engine.state is EngineState.DISCOVERED:
                engine.note(reason)
            await asyncio.sleep(self._timing.identity_s)

    async def _live(self, engine: Engine) -> None:
        """From STARTING to LOST, with the updater and the metrics beside."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._follow(engine)), tasks.create_task(self._read_metrics(engine))]
            reason = await self._watch(engine)
            log.warning("engine lost", engine=engine.address, boot_id=engine.boot_id, reason=reason)
            engine.move(EngineState.LOST, error=reason)
            for task in beside:
                task.cancel()

    async def _watch(self, engine: Engine) -> str:
        """Look at the engine until it is gone; returns why."""
        heard, refusals = time.monotonic(), 0
        while True:
            before = (engine.state, engine.held)
            try:
                needed_s = 0.0 if self._registry.stands_in(engine) else self._timing.needed_s
                identity = await self._admin.identity(needed_s)
                healthy = await self._admin.health()
            except AdminError as error:
                refusals = refusals + 1 if error.refused else 0
                if refusals >= REFUSALS or time.monotonic() - heard > self._timing.silence_s:
                    return str(error)
            else:
                heard, refusals = time.monotonic(), 0
                reason = self._changed_hands(engine, identity, healthy=healthy)
                if reason is not None:
                    return reason
                self._take_in(engine, identity, before, healthy=healthy)
            engine.suspect.clear()
            await _until_set(engine.suspect, self._timing.identity_s)

    def _changed_hands(self, engine: Engine, identity: EngineIdentity, *, healthy: bool) -> str | None:
        """Why what answers is not this engine any more, or not alive; None if it is."""
        if identity.boot_id != engine.boot_id:
            return f"restarted: boot id {identity.boot_id}, before {engine.boot_id}"
        if identity.run_uid != self._run_uid:
            return f"belongs to run {identity.run_uid!r} now"
        if not healthy and engine.state is not EngineState.STARTING:
            return "its health check fails"
        return None

    def _take_in(
        self, engine: Engine, identity: EngineIdentity, before: tuple[EngineState, PolicyId | None], *, healthy: bool
    ) -> None:
        engine.running = identity.running
        if identity.noticed and not engine.noticed:
            log.warning("engine was given notice", engine=engine.address, in_flight=engine.in_flight)
        engine.noticed, engine.draining = identity.noticed, identity.draining
        if engine.state is EngineState.STARTING and healthy:
            engine.move(EngineState.SYNCING)
        # Only if nothing moved while the answer was on its way: else it may speak of an earlier version.
        elif engine.state is EngineState.SERVING and (engine.state, engine.held) == before:
            held = identity.policy
            if identity.draining:
                engine.move(EngineState.DRAINING, error="given notice")
            elif held != engine.held:
                engine.move(EngineState.QUARANTINED, error=f"holds {held}, this pool has applied {engine.held}")
        elif engine.state is EngineState.DRAINING and not identity.draining:
            engine.move(EngineState.SERVING)

    async def _read_metrics(self, engine: Engine) -> None:
        boot_id = engine.boot_id or engine.address
        try:
            # Its state too: the client's timer swallows a cancellation that comes at the moment of a time-out.
            while not engine.lost:
                try:
                    self._metrics.observe(boot_id, await self._admin.metrics(), fresh=engine.fresh)
                except AdminError as error:
                    log.debug("engine metrics not read", engine=engine.address, error=str(error))
                await asyncio.sleep(self._timing.metrics_s)
        finally:
            self._metrics.forget(boot_id)


async def _until_set(event: asyncio.Event, seconds: float) -> None:
    # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
