"""What an episode's runner is lent: the run's provider, within the run's limits, that ends what the episode forgot."""

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from echorl_core.config import SandboxesConfig
from echorl_core.wire.sandboxes import Pending
from echorl_orchestrator.sandboxes.contract import (
    Command,
    Sandbox,
    SandboxError,
    Sandboxes,
    SandboxLimits,
    SandboxLoss,
    SandboxSpec,
)
from echorl_orchestrator.sandboxes.pod.provider import Access, OnWait, PodSandboxes
from echorl_orchestrator.sandboxes.process.images import HOST
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes, default_folder


class Made(Sandbox, Protocol):
    """A sandbox that tells its end."""

    @property
    def gone(self) -> "asyncio.Future[SandboxError | None]":
        """Set once nothing is left of it: why; None where it was destroyed."""
        ...


class Provider(Sandboxes, Protocol):
    """Whoever makes sandboxes of an episode."""

    async def create(self, spec: SandboxSpec, key: str) -> Made:
        """See ``contract.Sandboxes``."""
        ...

    async def close(self) -> None:
        """Destroy what is left."""
        ...


Tell = Callable[[dict[str, Any]], None]
"""Takes ``what`` became of the sandbox ``key``, which no other one of the run has: waits (with ``why`` and ``reason``),
started (with ``seconds``), destroyed, failed (with its ``loss``)."""
_TRIED_S = 60.0
_TRIALS = 3
_KILLED = 137
_LONGEST, _LONGEST_REASON = 128, 1024
"""Characters of what is told."""


@dataclass(frozen=True)
class BrokerKey:
    """What a broker knows a run by."""

    run_uid: str
    secret: str = field(repr=False)
    """The run's ``sandboxes_key``."""
    owner: str = field(default_factory=lambda: secrets.token_hex(4))
    """The process that asks: 8 letters or digits."""


@dataclass(frozen=True)
class Lending:
    """What sandboxes of a run's episodes are lent by."""

    config: SandboxesConfig
    gateway: tuple[str, int] | None
    """Where sandboxes of this machine reach the gateway."""
    tell: Tell
    key: BrokerKey | None = None
    """What pods are asked for with."""

    @asynccontextmanager
    async def to_episode(self) -> AsyncIterator["LentSandboxes"]:
        """Sandboxes of one episode; at its end, however it ends, they are destroyed."""
        episode = secrets.token_hex(6)

        def tell(key: str, **what: Any) -> None:
            self.tell({"key": f"{episode}.{key}"[:_LONGEST], **what})

        def waits(key: str, pending: Pending) -> None:
            tell(key, what="waits", why=pending.why[:_LONGEST], reason=pending.reason[:_LONGEST_REASON])

        lent = LentSandboxes(self.config, self._provider(waits), tell)
        try:
            yield lent
        finally:
            await asyncio.shield(lent.close())

    async def try_out(self) -> None:
        """Find out whether there can be sandboxes.

        On this machine one is made, something is run in it, and it is ended. Of pods nothing is made, since their
        images are the tasks' own: the broker is asked whether it knows the run.

        Raises:
            SandboxError: there can be none.
        """
        for again in reversed(range(_TRIALS)):
            try:
                await self._tried()
            except SandboxError as error:
                # Who was killed has not shown that there can be none.
                if error.loss is not SandboxLoss.LOST or not again:
                    raise
            else:
                return

    async def _tried(self) -> None:
        provider = self._provider()
        if not isinstance(provider, PodSandboxes):
            await _try_one(LentSandboxes(self.config, provider, lambda _, **__: None))
            return
        try:
            await provider.check()
        finally:
            await provider.close()

    async def end_all(self) -> None:
        """End what a process that is gone left in pods; on this machine nothing outlives it.

        Raises:
            SandboxError: the broker does not answer.
        """
        provider = self._provider()
        if isinstance(provider, PodSandboxes):
            try:
                await provider.end_all()
            finally:
                await provider.close()

    def _provider(self, on_wait: OnWait = lambda *_: None) -> PodSandboxes | ProcessSandboxes:
        """Raises SandboxError where this machine can have none."""
        if self.config.provider == "process":
            return ProcessSandboxes(default_folder(), self.gateway)
        if self.config.broker_url is None or self.key is None:
            raise SandboxError(SandboxLoss.REFUSED, "sandboxes.provider pod: found no broker to ask, accepted is one")
        return PodSandboxes(
            Access(self.config.broker_url, self.key.run_uid, self.key.secret, self.key.owner), on_wait=on_wait
        )


class LentSandboxes:
    """See ``contract.Sandboxes``. Made on the episode's event loop."""

    def __init__(self, config: SandboxesConfig, provider: Provider, tell: Callable[..., None]) -> None:
        """``provider`` is closed with this; ``tell`` is ``Tell`` for the key of an episode."""
        self._ttl_s = config.ttl_s
        self._tell = tell
        self._most = SandboxLimits(config.cpu, config.memory_bytes, config.disk_bytes, config.processes)
        self._provider = provider
        self._asked_for: set[str] = set()

    async def create(self, spec: SandboxSpec, key: str) -> Sandbox:
        """See the contract; limits and time are the run's where they are more."""
        if key in self._asked_for:
            return await self._provider.create(self._within(spec), key)
        self._asked_for.add(key)
        begun = time.monotonic()
        try:
            made = await self._provider.create(self._within(spec), key)
        except SandboxError as error:
            self._asked_for.discard(key)
            self._tell(key, what="failed", loss=str(error.loss))
            raise
        self._tell(key, what="started", seconds=time.monotonic() - begun)
        made.gone.add_done_callback(functools.partial(self._note, key))
        return made

    async def destroy(self, key: str) -> None:
        """See the contract."""
        await self._provider.destroy(key)
        self._asked_for.discard(key)

    async def list(self) -> list[str]:
        """See the contract."""
        return await self._provider.list()

    async def close(self) -> None:
        """End everything."""
        await self._provider.close()

    def _note(self, key: str, gone: "asyncio.Future[SandboxError | None]") -> None:
        why = None if gone.cancelled() else gone.result()
        if why is None:
            self._tell(key, what="destroyed")
        else:
            self._tell(key, what="failed", loss=str(why.loss))

    def _within(self, spec: SandboxSpec) -> SandboxSpec:
        most = self._most
        asked = spec.limits or most
        limits = SandboxLimits(
            min(asked.cpu, most.cpu),
            min(asked.memory_bytes, most.memory_bytes),
            min(asked.disk_bytes, most.disk_bytes),
            min(asked.processes, most.processes),
        )
        return replace(spec, limits=limits, ttl_s=min(spec.ttl_s, self._ttl_s))


async def _try_one(lent: LentSandboxes) -> None:
    try:
        sandbox = await lent.create(SandboxSpec(HOST, "/"), "trial")
        await sandbox.start(Command(["sh", "-c", "echo works"]), "trial")
        ended = await sandbox.wait("trial", _TRIED_S)
        said = (await sandbox.output("trial")).decode(errors="replace").strip()
        if ended is None or ended.code != 0 or said != "works":
            loss = SandboxLoss.LOST if ended is not None and ended.code == _KILLED else SandboxLoss.REFUSED
            raise SandboxError(loss, f"a command in a sandbox here ended with: {said or ended}")
    finally:
        await lent.close()
