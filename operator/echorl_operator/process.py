"""The operator's parts, put together: this is the data-flow map of the process.

    API server --lists/watches--> cluster.Cache --on_change--> reconcile.WorkQueue --> worker --> passes.Passes
        ^                                                          ^                                |  observe
        |                                                          |                                v
        +------------------- cluster.Writer <------- actions -- plan.planning <-------------- Observed
                                                                   |
    orchestrators <--long poll-- cluster.Orchestrators ------------+

Only a leader works; a process in reserve keeps its cache warm. Every task is supervised: one that ends, ends the
process, and the kubelet starts it again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Never

import structlog

from echorl_operator.kube import errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.credentials import Credentials
from echorl_operator.kube.election import EXIT_LOST_LEADERSHIP, Election
from echorl_operator.kube.events import Events
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.kube.pods_by_name import PodByNameReader
from echorl_operator.kube.warning_events import WarningEventReader
from echorl_operator.kube.writer import Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.memory import WITHOUT_GANG, Memory
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunKey
from echorl_operator.orchestrators.polling import Orchestrators
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.reconcile.breaker import Breaker
from echorl_operator.reconcile.lanes import Urgency
from echorl_operator.reconcile.passes import Passes
from echorl_operator.reconcile.queue import WorkQueue
from echorl_operator.reconcile.run_metrics import RunMetrics
from echorl_operator.reconcile.workers import Workers, WorkerSettings
from echorl_operator.settings import Settings
from echorl_operator.watchdog import Vitals, Watchdog, WatchdogLimits

_log = structlog.get_logger()

WORKERS = 16
PROBE_TIMEOUT_S = 5.0
SANDBOXES_PACE_S = 2.0
"""How long after a change of a run's sandboxes the run is looked at."""
LEASE_NAME = "echorl-operator"
WATCHED = frozenset(Kind) - {Kind.SECRET}
"""Secrets are made and never read, so the operator needs no right to read any."""


@dataclass(frozen=True)
class Options:
    """Options of one process."""

    instance: str
    """Name and uid of this pod, so that a restarted container is its own successor in the election."""
    lease_namespace: str
    namespaces: Sequence[str] | None = None
    """Where runs are looked after; None: everywhere."""
    workers: int = WORKERS
    lead: bool = True
    """False: without an election, as the only process."""
    streams: StreamSettings = field(default_factory=StreamSettings)
    """Time-outs and waits of lists and watches."""
    limits: WatchdogLimits = field(default_factory=WatchdogLimits)
    """After which the process is not alive."""


class Operator:
    """One process. Open it with ``running``."""

    def __init__(
        self,
        options: Options,
        settings: Settings,
        tokens: Tokens,
        connection: Connection,
        metrics: Metrics,
        *,
        on_lost: Callable[[str], None],
    ) -> None:
        """``on_lost`` is called when this process must not lead any more; it should end the process at once."""
        self._options, self._connection, self.metrics = options, connection, metrics
        self.queue = WorkQueue(metrics, urgency=self._urgency)
        self.breaker = Breaker(self._probe, on_open=self.queue.pause, on_close=self._resume, metrics=metrics)
        self.cache = Cache(
            connection,
            options.namespaces,
            kinds=WATCHED,
            on_change=self.queue.add,
            on_sandbox=None if settings.broker_url is None else self._sandbox_changed,
            metrics=metrics,
            settings=options.streams,
            on_failure=self.breaker.suspect,
        )
        self.election = (
            Election(
                connection, options.lease_namespace, LEASE_NAME, options.instance, on_lost=on_lost, metrics=metrics
            )
            if options.lead
            else None
        )
        metrics.leader.set(0 if options.lead else 1)
        writer = Writer(connection, self.cache, may_write=self.leading)
        self.orchestrators = Orchestrators(tokens, on_change=self.queue.add, metrics=metrics)
        events = Events(connection, options.instance, metrics)
        self._passes = Passes(
            self.cache,
            writer,
            orchestrators=self.orchestrators,
            events=events,
            warning_events=WarningEventReader(connection),
            pods_by_name=PodByNameReader(connection),
            tokens=tokens,
            settings=settings,
            run_metrics=RunMetrics(metrics, settings.gpu_resource, self.leading),
        )
        self.watchdog = Watchdog(
            Vitals(
                streams=lambda: self.cache.streams,
                synced=lambda: self.cache.synced,
                api_down=lambda: self.breaker.open,
                reachable_since=lambda: self.breaker.reachable_since,
                longest_pass_s=self.queue.longest_running,
                election_round=lambda: None if self.election is None else self.election.last_round,
            ),
            options.limits,
        )

    def _sandbox_changed(self, key: RunKey) -> None:
        # Of a run with hundreds of them many change each second, and only counts are told.
        self.queue.add_after(key, SANDBOXES_PACE_S)

    def _urgency(self, key: RunKey) -> Urgency:
        """Who waits for us: somebody who edited the run, or engines and GPUs until the gang is let through."""
        run = self.cache.runs.get(key.namespace, key.name)
        if run is None:
            return Urgency.NONE
        memory = Memory.of(run.status)
        if run.generation != memory.rendered_generation:
            return Urgency.EDITED if memory.attempt else Urgency.STARTING
        starts = memory.phase not in WITHOUT_GANG and not memory.admitted()
        return Urgency.STARTING if starts else Urgency.NONE

    def leading(self) -> bool:
        """Whether this process may write."""
        return self.election is None or self.election.leading

    async def run(self) -> Never:
        """Work until cancelled.

        Raises:
            ExceptionGroup: with what a part failed with.
        """
        parts: list[Coroutine[Any, Any, Any]] = [
            self.cache.run(),
            self.breaker.run(),
            self.orchestrators.run(),
            self._lead(),
        ]
        if self.election is not None:
            parts.append(self.election.run())
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
        raise RuntimeError("every part of the operator ended by itself")

    async def _lead(self) -> None:
        if self.election is not None:
            await self.election.wait_elected()
        while not self.cache.synced:
            await asyncio.gather(*(stream.synced.wait() for stream in self.cache.streams))
        self.queue.add_all(record.key for record in self.cache.runs)
        settings = WorkerSettings(workers=self._options.workers)
        await Workers(self.queue, self.breaker, self._passes.run, self.metrics, settings).run()

    async def _probe(self) -> None:
        """A read with our own rights: runs, in the first namespace that is looked after."""
        namespaces = self._options.namespaces
        where = f"namespaces/{namespaces[0]}/" if namespaces else ""
        path = f"/apis/echorl.dev/v1alpha1/{where}echorlruns"
        await self._connection.request(Call("list", path, "echorlruns", {"limit": "1"}, timeout_s=PROBE_TIMEOUT_S))

    def _resume(self) -> None:
        self.queue.resume()
        self.queue.add_all(record.key for record in self.cache.runs)

    def notice(self, key: RunKey) -> None:
        """Somebody else saw that a run changed."""
        self.queue.add(key, urgent=True)


def end_at_once(reason: str) -> None:
    """End the process when the lease is lost: whoever leads now must not meet a write of ours."""
    _log.error("ending at once", reason=reason)
    os._exit(EXIT_LOST_LEADERSHIP)


@asynccontextmanager
async def running(
    options: Options,
    settings: Settings,
    tokens: Tokens,
    credentials: Credentials,
    metrics: Metrics,
    *,
    on_lost: Callable[[str], None] = end_at_once,
) -> AsyncIterator[tuple[Operator, asyncio.Task[Never]]]:
    """An operator at work, and the task that ends if one of its parts fails. Releases the lease at the end."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection(credentials, metrics))
        operator = Operator(options, settings, tokens, connection, metrics, on_lost=on_lost)
        await stack.enter_async_context(operator.orchestrators)
        task = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operator, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if operator.election is not None:
                try:
                    await operator.election.release()
                except errors.ApiError as error:
                    _log.warning("the lease was not released", error=str(error))
