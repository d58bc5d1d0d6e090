"""The workers of one environment: leases for episodes, replacement of dead and stuck ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind
from echorl_orchestrator.metrics.process_counters import WORKER_DEATHS, WORKERS_RETIRED
from echorl_orchestrator.sandboxes.contract import SandboxError
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.worker import EnvironmentFacts, Worker, WorkerSpec, WorkerStartError

_log = structlog.get_logger()
_MAX_FAILED_STARTS = 5
_MAX_BACKOFF_S = 30.0
_HEALTHY_AFTER_S = 60.0
_LATE_POD_S = 30.0
"""A pod that was being made when its worker died is there by then."""


class WorkerPool:
    """Keeps ``workers`` processes alive and spreads episodes over them.

    A worker whose environment code does not come back within ``grace_s`` of an episode's end is retired: a fresh one
    takes its place at once, and it is killed when its other episodes are done, ``drain_s`` later at the latest.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        background: Background,
        *,
        grace_s: float = 5.0,
        drain_s: float = 10.0,
        backoff_s: float = 0.5,
    ) -> None:
        self._spec = spec
        self._background = background
        self._grace_s = grace_s
        self._drain_s = drain_s
        self._backoff_s = backoff_s
        self._workers: list[Worker | None] = [None] * spec.environment.workers
        self._changed = asyncio.Condition()
        self._draining: set[Worker] = set()
        """Workers without a slot whose process may still be there."""
        self._facts = EnvironmentFacts(0, runner=False, scores_groups=False)
        self.deaths = 0
        self.retirements = 0

    @property
    def facts(self) -> EnvironmentFacts:
        """What the environment said of itself."""
        return self._facts

    @property
    def pids(self) -> list[int]:
        """Processes that take new episodes."""
        return [worker.pid for worker in self._workers if worker is not None and not worker.gone.is_set()]

    async def start(self) -> None:
        """Start all workers.

        Raises:
            BadInputError: the environment cannot be loaded.
            WorkerStartError: a worker did not start.
        """
        started = await asyncio.gather(
            *(Worker.start(self._spec, self._background) for _ in self._workers), return_exceptions=True
        )
        self._workers = [worker if isinstance(worker, Worker) else None for worker in started]
        errors = [error for error in started if isinstance(error, BaseException)]
        if errors:
            raise next((error for error in errors if isinstance(error, BadInputError)), errors[0])
        for slot, worker in enumerate(self._workers):
            if worker is not None:
                self._facts = worker.facts
                self._background.spawn(self._keep(slot, worker), f"{self._spec.environment.name}-slot-{slot}")

    async def close(self) -> None:
        """Kill all workers. The keepers must have been cancelled before."""
        workers = [worker for worker in self._workers if worker is not None]
        await asyncio.gather(*(worker.kill() for worker in [*workers, *self._draining]))

    async def lease(self) -> Worker:
        """The worker with the fewest episodes; waits while none is ready. Give it back with ``end_episode``."""
        while (worker := self._free()) is None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._free() is not None)
        worker.take()
        return worker

    def _free(self) -> Worker | None:
        ready = [worker for worker in self._workers if worker is not None and not worker.gone.is_set()]
        return min(ready, key=lambda worker: worker.leases, default=None)

    @contextlib.asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Worker]:
        """A worker for calls that belong to no episode."""
        worker = await self.lease()
        try:
            yield worker
        finally:
            worker.give_back()

    def end_episode(self, worker: Worker, episode: str) -> None:
        """Close the episode's environment in the background and give the worker back; retire it if it hangs."""
        self._background.spawn(self._end(worker, episode), f"end-{episode}")

    async def _end(self, worker: Worker, episode: str) -> None:
        try:
            async with asyncio.timeout(self._grace_s):
                await worker.call("close", episode=episode)
        except TimeoutError:
            self.retire(worker)
        except EpisodeError as error:
            if error.kind is not ErrorKind.SANDBOX:
                _log.warning(
                    "close_raised", environment=self._spec.environment.name, episode=episode, error=error.message
                )
        finally:
            worker.give_back()

    def retire(self, worker: Worker) -> None:
        """Replace a stuck worker. Idempotent."""
        if worker.retired or worker.dead:
            return
        worker.retire()
        self.retirements += 1
        WORKERS_RETIRED.labels(self._spec.environment.name).inc()
        _log.warning("worker_retired", environment=self._spec.environment.name, pid=worker.pid)
        self._draining.add(worker)
        self._background.spawn(self._drain(worker), f"drain-{worker.pid}")

    async def _drain(self, worker: Worker) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await worker.idle.wait()
        await worker.kill()
        self._draining.discard(worker)
        self._clean_up(worker)

    def _clean_up(self, worker: Worker) -> None:
        self._background.spawn(self._end_sandboxes(worker), f"sandboxes-{worker.pid}")

    async def _end_sandboxes(self, worker: Worker) -> None:
        for pause_s in (0.0, _LATE_POD_S):
            await asyncio.sleep(pause_s)
            try:
                await worker.end_sandboxes()
            except SandboxError as error:
                environment = self._spec.environment.name
                _log.warning("sandboxes_left", environment=environment, pid=worker.pid, error=str(error))

    async def _keep(self, slot: int, worker: Worker) -> None:
        failures = 0
        while True:
            await worker.gone.wait()
            self._workers[slot] = None
            if not worker.retired:
                self.deaths += 1
                WORKER_DEATHS.labels(self._spec.environment.name).inc()
                _log.warning("worker_died", environment=self._spec.environment.name, pid=worker.pid)
                self._draining.add(worker)
                await worker.kill()
                self._draining.discard(worker)
                self._clean_up(worker)
                failures = failures + 1 if worker.lived_s < _HEALTHY_AFTER_S else 1
                # The power is bounded too: a worker that died a thousand times in a row would overflow it.
                await asyncio.sleep(min(self._backoff_s * 2.0 ** min(failures - 1, 32), _MAX_BACKOFF_S))
            worker = await self._replacement()
            self._workers[slot] = worker
            async with self._changed:
                self._changed.notify_all()

    async def _replacement(self) -> Worker:
        for attempt in range(1, _MAX_FAILED_STARTS + 1):
            try:
                return await Worker.start(self._spec, self._background)
            except (WorkerStartError, TimeoutError, OSError) as error:
                _log.warning("worker_start_failed", environment=self._spec.environment.name, error=str(error))
                await asyncio.sleep(min(self._backoff_s * 2**attempt, _MAX_BACKOFF_S))
        raise WorkerStartError(
            f"environments.{self._spec.environment.name}: no worker started in {_MAX_FAILED_STARTS} attempts"
        )
