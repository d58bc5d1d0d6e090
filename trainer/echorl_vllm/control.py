"""An engine's weight updates and pauses, as its API server sees them: who may do what in which state."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from echorl_core.wire.engine import Applied, ApplyAnswer, EngineIdentity, PauseRequest, StageAnswer, StageRequest
from echorl_core.wire.weights import PolicyId
from echorl_vllm.asgi import HttpError, OwnRoutes
from echorl_vllm.bell import Bell
from echorl_vllm.messages import ApplyReport, WorkerReport

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.control")

_CALL_DEADLINE_S = 30.0
_APPLY_DEADLINE_S = 3600.0
"""Only a bound: what ends a hanging apply is the lease."""
_MAX_LEASE_S = 3600.0
MAX_WAIT_S = 60.0
"""For staging to end, in one call."""
_KEEP = "mode=keep&clear_cache=true"
"""Requests stay in the queue; their cache, of the old weights, goes."""
_RESET = "reset_running_requests=true"
_NOT_PAUSED = "not paused (or the pause's lease ran out): pause, then apply"
_ANSWER_FIRST_S = 0.5

_Report = TypeVar("_Report", WorkerReport, ApplyReport)


@dataclass
class _Lease:
    deadline: float
    paused: bool = False
    apply_began: bool = False
    ending: bool = False
    """Expired: generation is being resumed, nothing may be applied any more."""


class EngineControl:
    """State of one engine since its API server started; calls that change the engine run one at a time."""

    def __init__(
        self,
        routes: OwnRoutes,
        *,
        run_uid: str,
        running: Callable[[], int],
        end_engine: Callable[[], object],
        bell: Bell,
    ) -> None:
        """``running`` counts the generation requests in flight; workers ring ``bell`` when staging has ended."""
        self.boot_id = secrets.token_hex(8)
        self.applied: PolicyId | None = None
        self._in_place: PolicyId | None = None
        """What is being applied while generation goes on."""
        self.broken = False
        self.noticed = False
        """The engine was given notice."""
        self.draining = False
        """After it, while others stand in for it: nothing is sampled but for the requests that run."""
        self._routes = routes
        self._run_uid, self._running = run_uid, running
        self._end_engine = end_engine
        self._bell = bell
        self._turn = asyncio.Lock()
        self._lease: _Lease | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def newest(self) -> PolicyId | None:
        """The newest version that a token sampled until now may be of."""
        return self._in_place or self.applied

    def identity(self) -> EngineIdentity:
        """What the engine is and holds, without asking the engine."""
        lease, applied = self._lease, self.applied
        return EngineIdentity(
            boot_id=self.boot_id,
            run_uid=self._run_uid,
            attempt=None if applied is None else applied.attempt,
            version=None if applied is None else applied.version,
            digest=None if applied is None else applied.digest,
            ready=applied is not None and not self.broken,
            paused=lease is not None,
            lease_s=None if lease is None else round(max(0.0, lease.deadline - time.monotonic()), 3),
            running=self._running(),
            noticed=self.noticed,
            draining=self.draining,
        )

    async def stage(self, request: StageRequest) -> StageAnswer:
        """Make every worker begin to download a version."""
        self._refuse_older(request.attempt)
        if not 0 < request.deadline_s <= _MAX_LEASE_S:
            raise HttpError(400, f"deadline_s is {request.deadline_s}, accepted: more than 0, at most {_MAX_LEASE_S:g}")
        return self._staged(await self._ask("echorl_stage", WorkerReport, msgspec.json.encode(request).decode()))

    async def staged(self, wait_s: float = 0.0) -> StageAnswer:
        """What every worker has staged: as soon as none is staging any more, or as it is after ``wait_s`` seconds."""
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise HttpError(400, f"wait is {wait_s:g}, accepted: from 0 to {MAX_WAIT_S:g} seconds")
        until = time.monotonic() + wait_s
        while True:
            # Listened to before the workers are asked, so that nothing is missed in between.
            rung = self._bell.listen() if wait_s else None
            answer = self._staged(await self._ask("echorl_status", WorkerReport))
            left = until - time.monotonic()
            if rung is None or left <= 0 or all(worker.state != "staging" for worker in answer.workers):
                return answer
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await rung.wait()

    async def abort(self) -> StageAnswer:
        """Drop what is staged."""
        return self._staged(await self._ask("echorl_abort", WorkerReport))

    async def pause(self, request: PauseRequest) -> EngineIdentity:
        """Stop generation for at most ``lease_s`` seconds from now; again while paused, renew the lease."""
        if not 0 < request.lease_s <= _MAX_LEASE_S:
            raise HttpError(400, f"lease_s is {request.lease_s}, accepted: more than 0, at most {_MAX_LEASE_S:g}")
        if not self._renew(request.lease_s):
            async with self._turn:
                if not self._renew(request.lease_s):
                    await self._begin_pause(request.lease_s)
        return self.identity()

    def _renew(self, lease_s: float) -> bool:
        lease = self._lease
        if lease is None or lease.ending:
            return False
        # Without waiting for its turn: a pause may be renewed while an apply is running.
        lease.deadline = time.monotonic() + lease_s
        return lease.paused

    async def _begin_pause(self, lease_s: float) -> None:
        lease = self._lease = _Lease(deadline=time.monotonic() + lease_s)
        try:
            await self._routes.call("POST", "/pause", query=_KEEP, deadline_s=lease_s)
        except HttpError:
            # Whether the engine stopped is unknown, and a pause that nothing ends must not stay.
            self._lease = None
            try:
                await self._routes.call("POST", "/resume", deadline_s=_CALL_DEADLINE_S)
            except HttpError as error:
                self._break(f"resume after a failed pause: {error}")
            raise
        lease.paused = True
        self._watcher = asyncio.create_task(self._watch(lease))
        self._watcher.add_done_callback(self._watcher_done)

    async def apply(self, policy: PolicyId) -> ApplyAnswer:
        """Put a staged version into the model of every worker; the engine must be paused, unless all do it in place."""
        self._refuse_older(policy.attempt)
        async with self._turn:
            lease = self._lease
            if lease is not None and (not lease.paused or lease.ending or lease.deadline <= time.monotonic()):
                raise HttpError(409, _NOT_PAUSED)
            workers = await self._ask("echorl_status", WorkerReport)
            for worker in workers:
                if not worker.stage.is_staged(policy) and not (worker.applied and worker.applied.policy == policy):
                    stage = f"{worker.stage.state}, attempt {worker.stage.attempt} version {worker.stage.version}"
                    raise HttpError(409, f"{policy} is not staged on every worker; one is {stage}")
            if lease is None and not all(one.stage.in_place for one in workers if one.stage.is_staged(policy)):
                raise HttpError(409, _NOT_PAUSED)
            if lease is not None:
                if lease.ending:
                    raise HttpError(409, "the pause's lease ran out before the apply began")
                lease.apply_began = True
            else:
                self._in_place = policy
            try:
                reports = await self._ask(
                    "echorl_apply", ApplyReport, msgspec.json.encode(policy).decode(), deadline_s=_APPLY_DEADLINE_S
                )
            except HttpError as error:
                self._break(f"apply of {policy}: {error}")
                raise
            finally:
                self._in_place = None
            applied = self._judge(policy, lease, reports)
            if lease is None:
                # Steps in between used caches of the old weights. These go, those of running requests too.
                await self._routes.call("POST", "/reset_prefix_cache", query=_RESET, deadline_s=_CALL_DEADLINE_S)
            return ApplyAnswer(workers=applied)

    def _judge(self, policy: PolicyId, lease: _Lease | None, reports: list[ApplyReport]) -> list[Applied]:
        errors = [report.error for report in reports if report.error is not None]
        applied = [report.applied for report in reports if report.applied is not None]
        if errors and not applied and not any(report.broken for report in reports):
            if lease is not None:
                lease.apply_began = False
            raise HttpError(409, errors[0])
        if errors or any(replaced.policy != policy for replaced in applied):
            self._break(f"apply of {policy}: {errors or 'a worker reports another version'}")
            raise HttpError(500, f"the engine ends, its model is half replaced: {errors}")
        self.applied = policy
        return applied

    async def resume(self) -> EngineIdentity:
        """Let generation go on; the lease ends. Harmless when nothing is paused."""
        async with self._turn:
            if self.broken:
                raise HttpError(409, "the engine ends: its model is half replaced")
            await self._resume()
        return self.identity()

    async def abort_requests(self) -> dict[str, Any]:
        """Abort every running and waiting request; they answer with what they have."""
        try:
            answer = await self._routes.call("POST", "/abort_requests", body={}, deadline_s=_CALL_DEADLINE_S)
        except HttpError as error:
            if error.inner != 404:
                raise
            await self._abort_by_pausing()
            return {"aborted": None}
        return {"aborted": answer["aborted"]}

    async def _abort_by_pausing(self) -> None:
        """End every request with a vLLM that has no route for it (0.25.1)."""
        async with self._turn:
            await self._routes.call("POST", "/pause", query="mode=abort&clear_cache=true", deadline_s=_CALL_DEADLINE_S)
            if self._lease is None:
                await self._routes.call("POST", "/resume", deadline_s=_CALL_DEADLINE_S)
            else:
                await self._routes.call("POST", "/pause", query=_KEEP, deadline_s=_CALL_DEADLINE_S)

    async def _resume(self) -> None:
        await self._routes.call("POST", "/resume", deadline_s=_CALL_DEADLINE_S)
        self._lease = None
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        self._watcher = None

    async def _watch(self, lease: _Lease) -> None:
        while True:
            left = lease.deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(left)
        if lease.apply_began:
            log.error("the pause's lease expired after an apply began: the engine ends")
            self._end_engine()
            return
        lease.ending = True
        log.warning("the pause's lease expired before an apply: generation is resumed")
        async with asyncio.timeout(_CALL_DEADLINE_S), self._turn:
            await self._resume()

    def _watcher_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("the lease's watch failed: the engine ends", exc_info=task.exception())
            self._end_engine()

    def _break(self, reason: str) -> None:
        self.broken = True
        log.error("the engine ends: %s", reason)
        # The caller learns why before the process is gone.
        asyncio.get_running_loop().call_later(_ANSWER_FIRST_S, self._end_engine)

    def _refuse_older(self, attempt: int) -> None:
        if self.applied is not None and attempt < self.applied.attempt:
            raise HttpError(409, f"attempt {attempt} is over: the engine holds attempt {self.applied.attempt}")

    @staticmethod
    def _staged(workers: list[WorkerReport]) -> StageAnswer:
        return StageAnswer(workers=[worker.stage for worker in workers])

    async def _ask(
        self, method: str, answer: type[_Report], *args: str, deadline_s: float = _CALL_DEADLINE_S
    ) -> list[_Report]:
        """Call a method of every worker. No deadline is given to vLLM: there, one that passes ends the engine."""
        body = {"method": method, "args": list(args)}
        reply = await self._routes.call("POST", "/collective_rpc", body=body, deadline_s=deadline_s)
        return [msgspec.json.decode(result, type=answer) for result in reply["results"]]
