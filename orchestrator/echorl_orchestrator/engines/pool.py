"""The pool: engines found by name, each driven by a task of its own, all asked for tokens through one object."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from echorl_core import names
from echorl_core.config import OrchestratorConfig, SamplingConfig
from echorl_core.identity import RunIdentity
from echorl_core.routing import router_shape
from echorl_core.wire.goodput import TimeState
from echorl_core.wire.run_state import EngineView
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.engines.admin import AdminClient
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.client import GenerationClient
from echorl_orchestrator.engines.discovery import Discovery
from echorl_orchestrator.engines.dispatch import Dispatcher
from echorl_orchestrator.engines.engine import COUNTED, Engine, EngineState
from echorl_orchestrator.engines.engine_metrics import Distribution, EngineMetrics
from echorl_orchestrator.engines.engine_monitor import EngineMonitor
from echorl_orchestrator.engines.generation import ChatGeneration, Generation
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.engines.timing import Timing
from echorl_orchestrator.engines.updater import Goal, Limits, Updater

log = structlog.get_logger()

_DOING = {
    EngineState.DISCOVERED: TimeState.STARTING,
    EngineState.STARTING: TimeState.STARTING,
    EngineState.SYNCING: TimeState.STARTING,
    EngineState.SERVING: None,
    EngineState.UPDATING: TimeState.PUBLISHING,
    EngineState.DRAINING: None,
    EngineState.QUARANTINED: TimeState.RESTARTING,
    EngineState.LOST: TimeState.RESTARTING,
}
"""What the time of an engine in a state is for; None: for its requests."""


class EnginePool:
    """All engines of a run, for one attempt. Implements TokenGenerator and ChatGenerator.

    ``on_update`` gets a record of every finished update: ``engine``, ``attempt``, ``version``, ``stage_s``, ``pause_s``
    (pause sent to resume answered), ``apply_s``, ``probe_s`` (seconds), ``max_probe_error`` (nats; None without a
    probe), ``running_at_pause`` (requests of this pool), ``received_bytes`` (of weights, all workers), ``delta`` (what
    became of the version's delta: ``DeltaUse``) and ``broadcast`` (whether all workers received it by broadcast).
    """

    def __init__(
        self,
        config: OrchestratorConfig,
        identity: RunIdentity,
        token: str,
        *,
        on_update: Callable[[dict[str, Any]], None],
        timing: Timing | None = None,
        meter: Meter | None = None,
        journal: TurnJournal | None = None,
    ) -> None:
        """``meter``: is told what engines do, and of every request for tokens. ``journal``: see ``Dispatcher``."""
        self._meter, self._journal = meter or Meter(), journal
        self._config = config
        self._identity = identity
        self._token = token
        self._on_update = on_update
        self._timing = timing or Timing()
        self._changes = Changes()
        self._discovery = Discovery(config.engines.names)
        self._metrics = EngineMetrics()
        self._engines: dict[str, Engine] = {}
        self._monitors: dict[str, asyncio.Task[None]] = {}
        self._target: PolicyAnnouncement | None = None
        self._open: _Open | None = None

    async def start(self) -> None:
        """Open the connections and begin to look for engines."""
        own = self._identity.headers()
        # Ours stand, in whatever case the others are written.
        kept = {name.lower() for name in (*own, names.HEADER_TOKEN, names.HEADER_SESSION, "Content-Type", "Host")}
        extra = self._config.engines.extra_headers
        headers = {**{name: value for name, value in extra.items() if name.lower() not in kept}, **own}
        generation = _session(headers, self._timing, total_s=self._timing.generate_s)
        admin = _session({**headers, names.HEADER_TOKEN: self._token}, self._timing, total_s=self._timing.admin_s)
        dispatcher = Dispatcher(
            GenerationClient(generation),
            self._list,
            self._changes,
            self._config.update_deadline_s,
            self._timing,
            meter=self._meter,
            journal=self._journal,
            routing=router_shape(Path(self._config.model.path)) if self._config.router_replay else None,
        )
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        finding = asyncio.create_task(self._find_engines())
        finding.add_done_callback(self._ended)
        self._open = _Open(generation, admin, dispatcher, failure, finding)

    async def run_forever(self) -> None:
        """Wait until cancelled; raises what a task of the pool failed with."""
        await asyncio.shield(self._opened.failure)

    async def close(self) -> None:
        """End all tasks (an engine that is paused is resumed) and give calls in flight up."""
        if self._open is None:
            return
        opened, self._open = self._open, None
        opened.dispatcher.close()
        tasks = [opened.finding, *self._monitors.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await opened.generation.close()
        await opened.admin.close()
        self._discovery.close()
        if not opened.failure.cancel():
            opened.failure.exception()

    def announce(self, policy: PolicyAnnouncement) -> None:
        """Bring all engines to ``policy``. One that does not supersede the last is ignored.

        Raises:
            ValueError: the policy belongs to another attempt.
        """
        if policy.attempt != self._identity.attempt:
            raise ValueError(f"policy of attempt {policy.attempt}; this is attempt {self._identity.attempt}")
        if self._target is not None and not policy.supersedes(self._target):
            log.info("policy is not newer, ignored", version=policy.version, newest=self._target.version)
            return
        self._target = policy
        self._changes.notify()

    def served(self) -> tuple[int, int] | None:
        """Lowest and highest version that engines serve; None if none serves."""
        versions = [engine.version for engine in self._engines.values() if engine.state in COUNTED]
        return (min(versions), max(versions)) if versions else None

    def version_for_dispatch(self) -> int:
        """Lowest version that a request sent now may be sampled with; -1 if no engine serves."""
        served = self.served()
        return -1 if served is None else served[0]

    async def wait_served(self, version: int, deadline_s: float) -> None:
        """Wait until at least one engine serves, and none serves less than ``version``.

        Raises:
            TimeoutError: that is not so after ``deadline_s``.
        """
        try:
            await self._changes.until(lambda: True if self.version_for_dispatch() >= version else None, deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"version {version} is not served after {deadline_s} s: {self.views()}") from error

    def views(self) -> list[EngineView]:
        """Every known engine, by address."""
        return [self._engines[address].view() for address in sorted(self._engines)]

    def metrics_snapshot(self) -> dict[str, float]:
        """Metrics of all engines as one (``EngineMetrics.snapshot``), and ``engines``: how many serve."""
        serving = sum(engine.state in COUNTED for engine in self._engines.values())
        return {"engines": float(serving), **self._metrics.snapshot()}

    def distributions(self) -> dict[str, Distribution]:
        """Latencies of all engines as one (``EngineMetrics.distributions``)."""
        return self._metrics.distributions()

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = names.SERVED_MODEL_NAME,
        experts_from: int | None = None,
    ) -> Generation:
        """Sample one completion on the engine that the episode sticks to; see TokenGenerator."""
        return await self._opened.dispatcher.generate(
            episode=episode,
            prompt_ids=prompt_ids,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            model=model,
            experts_from=experts_from,
        )

    async def chat(
        self,
        *,
        episode: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        sampling: SamplingConfig,
        max_tokens: int,
    ) -> ChatGeneration:
        """Chat completion on the engine that the episode sticks to; see ChatGenerator."""
        return await self._opened.dispatcher.chat(
            episode=episode, messages=messages, tools=tools, sampling=sampling, max_tokens=max_tokens
        )

    async def count_tokens(self, *, episode: str, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """The length of a prompt that the episode's engine renders; see ChatGenerator."""
        return await self._opened.dispatcher.count_tokens(episode=episode, messages=messages, tools=tools)

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of tokens 1.. given their prefix; see TokenGenerator."""
        return await self._opened.dispatcher.prompt_logprobs(token_ids=token_ids)

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to. Unknown episodes are ignored."""
        if self._open is not None:
            self._open.dispatcher.release(episode)

    def register(self, address: str) -> Engine:
        """A fresh engine for the address, in place of a lost one (called by its monitor)."""
        self._engines[address] = Engine(address, self._engine_changed)
        self._engine_changed()
        return self._engines[address]

    def twin(self, engine: Engine, boot_id: str) -> str | None:
        """Another address at which the same start of the same server is known (called by monitors)."""
        for other in self._engines.values():
            alive = other.state not in {EngineState.DISCOVERED, EngineState.LOST}
            if other is not engine and alive and other.boot_id == boot_id:
                return other.address
        return None

    def stands_in(self, engine: Engine) -> bool:
        """Whether another engine serves, and goes on to (called by monitors)."""
        others = (one for one in self._engines.values() if one is not engine)
        return any(one.state in COUNTED and not one.noticed for one in others)

    @property
    def _opened(self) -> "_Open":
        if self._open is None:
            raise RuntimeError("the engine pool is not started, or closed")
        return self._open

    def _engine_changed(self) -> None:
        self._meter.engines({address: _DOING[engine.state] for address, engine in self._engines.items()})
        self._changes.notify()

    def _list(self) -> list[Engine]:
        return list(self._engines.values())

    async def _find_engines(self) -> None:
        while True:
            addresses = await self._discovery.addresses()
            for address in addresses - self._monitors.keys():
                task = asyncio.create_task(self._monitor(address).run())
                self._monitors[address] = task
                task.add_done_callback(self._ended)
                task.add_done_callback(partial(self._forget, address))
            for address in self._monitors.keys() - addresses:
                self._monitors[address].cancel()
            await asyncio.sleep(self._config.engines.interval_s)

    def _monitor(self, address: str) -> EngineMonitor:
        admin = AdminClient(self._opened.admin, address, self._timing)

        def follow(engine: Engine) -> Coroutine[Any, Any, None]:
            return Updater(
                engine,
                admin,
                goal=Goal(lambda: self._target, self.version_for_dispatch),
                changes=self._changes,
                limits=Limits(self._config.pause_lease_s, self._config.update_deadline_s),
                timing=self._timing,
                on_update=self._on_update,
            ).follow()

        return EngineMonitor(
            address,
            admin,
            run_uid=self._identity.uid,
            registry=self,
            follow=follow,
            metrics=self._metrics,
            timing=self._timing,
        )

    def _forget(self, address: str, _: asyncio.Task[None]) -> None:
        self._monitors.pop(address, None)
        self._engines.pop(address, None)
        self._engine_changed()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Hand the failure of a background task to ``run_forever``."""
        if task.cancelled() or self._open is None or self._open.failure.done():
            return
        error = task.exception() or RuntimeError("a task of the engine pool ended by itself")
        self._open.failure.set_exception(error)


@dataclass(frozen=True)
class _Open:
    """What exists between start and close."""

    generation: aiohttp.ClientSession
    admin: aiohttp.ClientSession
    dispatcher: Dispatcher
    failure: asyncio.Future[None]
    finding: asyncio.Task[None]


def _session(headers: dict[str, str], timing: Timing, *, total_s: float) -> aiohttp.ClientSession:
    """A session without a bound on connections: engines queue requests themselves."""
    return aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=timing.keep_alive_s),
        timeout=aiohttp.ClientTimeout(total=total_s, sock_connect=timing.connect_s),
        skip_auto_headers=["User-Agent"],
    )
