"""One pass over a run: observe, plan, write. The only place where plans meet the API server."""

import time
from collections.abc import Callable, Iterable

from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.diagnosis.event_queries import absent_pods, is_stranger, objects_to_query
from echorl_operator.kube import errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.events import Events
from echorl_operator.kube.pods_by_name import PodByNameReader
from echorl_operator.kube.warning_events import WarningEventReader
from echorl_operator.kube.writer import NotLeading, Writer
from echorl_operator.names import PodRole
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.observed.world import Observed
from echorl_operator.orchestrators.polling import Orchestrators, Target
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.plan.actions import Note, Plan
from echorl_operator.plan.cache import ResultCaches
from echorl_operator.plan.planning import plan
from echorl_operator.reconcile.execution import Executor, StillDiffers
from echorl_operator.reconcile.run_metrics import RunMetrics
from echorl_operator.reconcile.status_throttle import StatusThrottle
from echorl_operator.settings import Settings
from echorl_operator.status.conditions import PROBLEMS

TRIPPED = "PassFailed"
"""Event of a pass that raised where nothing outside can be the cause."""
_REFUSALS = (errors.Invalid, errors.Forbidden, errors.Refused, errors.BadRequest, StillDiffers)


class Passes:
    """Carries out passes; keeps nothing that a successor would miss."""

    def __init__(
        self,
        cache: Cache,
        writer: Writer,
        *,
        orchestrators: Orchestrators,
        events: Events,
        warning_events: WarningEventReader,
        pods_by_name: PodByNameReader,
        tokens: Tokens,
        settings: Settings,
        run_metrics: RunMetrics,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``wall``: seconds since the epoch."""
        self._cache, self._writer, self._orchestrators = cache, writer, orchestrators
        self._executor = Executor(writer, orchestrators)
        self._events, self._tokens, self._settings, self._wall = events, tokens, settings, wall
        self._warning_events, self._pods_by_name, self._run_metrics = warning_events, pods_by_name, run_metrics
        self._caches, self._throttle = ResultCaches(), StatusThrottle()
        self._refusals: dict[str, str] = {}
        """What the API server refused of the newest plan, by the run's uid."""

    async def run(self, key: RunKey) -> float | None:
        """One pass; seconds after which to look again although nothing changed, or None.

        Raises:
            errors.ApiError: a write failed; the queue decides when to try again.
        """
        observed = await self._observed(key)
        if observed is None:
            self._orchestrators.forget(key)
            self._warning_events.forget(key)
            self._pods_by_name.forget(key)
            self._run_metrics.forget(key)
            self._throttle.forget(key)
            return None
        record = observed.run
        try:
            self._run_metrics.observe(observed)
            made = self._plan(observed)
        except Exception as error:
            # A bug of ours, and nobody else tells the user that the run is left alone.
            what = f"the operator cannot decide: {type(error).__name__}: {error}"
            await self._events.post(record, "Warning", TRIPPED, f"{what}; it tries again, and its log says more")
            raise
        self._run_metrics.planned(key, made)
        try:
            said_after_s = await self._carry_out(observed, made)
        except NotLeading:
            return None
        except (errors.ApiError, StillDiffers) as error:
            await self._note_refusal(record, error)
            raise
        self._refusals.pop(record.uid, None)
        waits = (made.wake_after_s, self._warning_events.due_s(key), self._pods_by_name.due_s(key), said_after_s)
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _plan(self, observed: Observed) -> Plan:
        uid = observed.run.uid
        return plan(observed, self._settings, self._tokens.token(uid), self._caches.of_run(uid))

    async def _observed(self, key: RunKey) -> Observed | None:
        """The run's world, with what is read where something is wrong; None: there is no such run."""
        record = self._cache.runs.get(key.namespace, key.name)
        if record is None:
            return None
        observed = self._observe(record)
        asked = await self._warning_events.ask(record, objects_to_query(observed))
        if await self._pods_by_name.ask(record, absent_pods(observed)) or asked:
            # The world has gone on meanwhile.
            record = self._cache.runs.get(key.namespace, key.name)
            return None if record is None else self._observe(record)
        return observed

    def _observe(self, record: RunRecord) -> Observed:
        pods = self._cache.pods_of(record.uid)
        attempt = record.status.get("attempt")
        orchestrator = next(
            (
                pod
                for pod in pods
                if pod.role is PodRole.ORCHESTRATOR and pod.attempt == attempt and pod.ip and not pod.ended
            ),
            None,
        )
        if orchestrator is None:
            self._orchestrators.forget(record.key)
        else:
            address = orchestrator_address(orchestrator.ip)
            self._orchestrators.follow(Target(record.key, record.uid, orchestrator.attempt, address))
        return Observed(
            run=record,
            pods=pods,
            children=self._cache.children_of(record.uid),
            departed=self._cache.departed_of(record.uid),
            role_state=self._orchestrators.state(record.key),
            refusal=self._refusals.get(record.uid, ""),
            now=self._wall(),
            warning_events=self._warning_events.latest(record),
            sandboxes=self._cache.sandboxes_of(record.uid),
            strangers=tuple(pod for pod in self._pods_by_name.latest(record) if is_stranger(pod, record)),
        )

    async def _carry_out(self, observed: Observed, made: Plan) -> float | None:
        """Status first where it fences, else last; nothing is written that is there already.

        Returns:
            Seconds after which the status is to be written, where it is too early for that; else None.
        """
        record = observed.run
        differs = made.status != record.status
        if made.fence and differs:
            await self._write_status(record, made)
        try:
            for action in made.actions:
                await self._executor.carry_out(record, action)
        finally:
            # What was decided is told even if carrying it out fails: the next pass has nothing left to decide.
            if made.fence and differs:
                await self._tell(record, made.notes)
        if made.fence or not differs:
            return None
        if wait_s := self._throttle.wait_s(record.key, record.status, made):
            return wait_s
        await self._write_status(record, made)
        await self._tell(record, made.notes)
        return None

    async def _write_status(self, record: RunRecord, made: Plan) -> None:
        await self._writer.write_status(record, made.status)
        self._throttle.written(record.key)

    async def _tell(self, record: RunRecord, notes: Iterable[Note]) -> None:
        """Post notes, once the status is written that they are of: those of a pass that changes nothing come again."""
        for note in notes:
            await self._events.post(record, note.type, note.reason, note.message)

    async def _note_refusal(self, record: RunRecord, error: Exception) -> None:
        """Tell in status what the API server does not accept: quota, admission, a missing right."""
        if not isinstance(error, _REFUSALS):
            return
        refusal = str(error)
        if self._refusals.get(record.uid) == refusal:
            return
        self._refusals[record.uid] = refusal
        fresh = self._cache.runs.get(record.key.namespace, record.key.name)
        if fresh is None or fresh.uid != record.uid:
            return
        told = self._plan(self._observe(fresh))
        # Fences stand for actions of a pass that has failed: only what people read is written here.
        readable: dict[str, object] = {key: told.status[key] for key in ("message", "conditions") if key in told.status}
        try:
            await self._writer.write_status(fresh, {**fresh.status, **readable})
        except BaseException:
            # Nobody has read it: the next pass tells it.
            self._refusals.pop(record.uid, None)
            raise
        await self._tell(fresh, [note for note in told.notes if note.reason in PROBLEMS])
