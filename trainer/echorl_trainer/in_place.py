"""Whether the ranks of a gang start again where they are, from copies in memory that outlives their processes.

    each pod:   a rank failed, here or in another pod --> all ranks end --PodEnds--> the first pod
    first pod:  all pods have said how theirs ended --Verdict, the same for all--> start again, or end

No rank starts before all of the gang have ended, so none meets a process of before at the address where ranks meet.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
from msgspec.structs import replace

from echorl_core.config import MemoryConfig
from echorl_core.memory_copies import RankMemory, Restarted, steps_of_all
from echorl_core.names import ExitCode, Role
from echorl_core.restarts import Action, Death, Ledger, RestartPolicy, decide
from echorl_core.wire.in_place import PodEnds, RankEnd, Verdict
from echorl_trainer.rank_ends import End

log = structlog.get_logger()

PARTED_S = 60.0
"""Longest time between a rank's failure, as the first pod hears of it, and the end of all other ranks of the gang."""
SILENT_S = 15.0
"""How long a pod that knows how its ranks ended waits for an answer, any, of the first pod."""
ASK_S = 1.0
"""Of one question for the verdict; a pod that is told to end meanwhile notices it after that."""
WATCH_S = 20.0
"""Of one question whether a rank has failed elsewhere."""


class Unreachable(Exception):
    """The first pod gave no usable answer; worth another try."""


class FirstPod(Protocol):
    """Who decides for the gang."""

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Say how a pod's ranks ended, as often as one likes; what follows, or None if that is not known in time."""
        ...

    def has_failed(self, restarts: int, wait_s: float) -> bool:
        """Whether ranks that ``restarts`` came before must end since one of the gang failed; False: not in time."""
        ...

    def close(self) -> None:
        """This pod ends."""
        ...


class Agreement:
    """The first pod's decisions for all pods of the gang. Thread-safe."""

    def __init__(self, config: MemoryConfig, pods: int, *, parted_s: float = PARTED_S) -> None:
        self._config, self._pods, self._parted_s = config, pods, parted_s
        self._changed = threading.Condition()
        self._ends: dict[int, PodEnds] = {}
        """By pod, since the last restart."""
        self._verdicts: list[Verdict] = []
        """By the number of restarts before them; one that is no restart is the last one."""
        self._until: float | None = None
        self._unanswered: set[int] = set()
        self._ledger = Ledger()

    @property
    def _restarts(self) -> int:
        return sum(verdict.again for verdict in self._verdicts)

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Note how a pod's ranks ended; the verdict, or None if not all others have in time. Idempotent."""
        with self._changed:
            if ends.restarts == len(self._verdicts):
                self._ends[ends.pod] = ends
                self._unanswered.add(ends.pod)
                if self._until is None and _has_failed(ends):
                    self._until = time.monotonic() + self._parted_s
                self._changed.notify_all()
            self._wait_for(lambda: self._known(ends.restarts) is not None, wait_s)
            return self._known(ends.restarts)

    def has_failed(self, restarts: int, wait_s: float) -> bool:
        """Whether a rank that ``restarts`` came before has failed, within ``wait_s`` seconds."""
        with self._changed:
            return self._wait_for(lambda: restarts < self._restarts or self._until is not None, wait_s)

    def answered(self, pod: int) -> None:
        """Note that a pod has been told its last verdict."""
        with self._changed:
            self._unanswered.discard(pod)
            self._changed.notify_all()

    def close(self) -> None:
        """Wait a moment for the other pods' answers to be on their way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unanswered - {0}, 5.0)

    def _wait_for(self, is_true: Callable[[], bool], wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while not is_true() and (left := until - time.monotonic()) > 0:
            due = left if self._until is None else self._until - time.monotonic()
            self._changed.wait(max(0.01, min(left, due)))
        return is_true()

    def _known(self, restarts: int) -> Verdict | None:
        if restarts == len(self._verdicts) and (verdict := self._decided()) is not None:
            self._verdicts.append(verdict)
            if verdict.again:
                self._ends, self._until = {}, None
            self._changed.notify_all()
        return self._verdicts[restarts] if restarts < len(self._verdicts) else None

    def _decided(self) -> Verdict | None:
        restarts = len(self._verdicts)
        if leaving := [pod for pod, said in self._ends.items() if said.leaves]:
            return Verdict(again=False, restarts=restarts, reason=f"pod {leaving[0]} of the gang ends")
        if len(self._ends) == self._pods:
            return self._of_all(restarts)
        if self._until is None or time.monotonic() < self._until:
            return None
        missing = sorted(set(range(self._pods)) - set(self._ends))
        reason = f"pods {missing} did not say within {self._parted_s:.0f} s how their ranks ended"
        return Verdict(again=False, restarts=restarts, reason=reason)

    def _of_all(self, restarts: int) -> Verdict:
        ends = [end for pod in sorted(self._ends) for end in self._ends[pod].ends]
        held = max(set.intersection(*(set(said.held) for said in self._ends.values())), default=None)
        failed = [end for end in map(_end, ends) if end.code != ExitCode.OK and not end.asked]
        passed_on = {*self._config.passed_on, ExitCode.NOTICE}
        nothing = Verdict(again=False, restarts=restarts, reason="a new attempt may mend it, or nothing has to")
        if not failed or held is None or any(end.code in passed_on for end in failed):
            return nothing
        config = self._config
        policy = RestartPolicy(config.max_restarts, config.backoff_s, config.reset_after_steps)
        deaths = [Death(Role.TRAINER, f"rank {end.rank}", end.status) for end in failed]
        self._ledger = self._ledger.after_progress(held, policy)
        decision = decide(deaths, ledger=self._ledger, policy=policy, is_held=True)
        if decision.action is not Action.RESTART_GANG:
            return nothing
        self._ledger = self._ledger.with_restart(Role.TRAINER, held)
        return Verdict(again=True, restarts=restarts + 1, reason=decision.reason, delay_s=decision.delay_s)


def _end(said: RankEnd) -> End:
    return End(said.rank, said.status, said.asked)


def _has_failed(ends: PodEnds) -> bool:
    """Whether others need not go on; a pod that was told to end, or saved after a notice, lets them save too."""
    expected = (ExitCode.OK, ExitCode.NOTICE)
    return any(not end.asked and _end(end).code not in expected for end in ends.ends)


class InPlace:
    """One pod's part in restarts of all ranks, from what its process 1 keeps in memory for its own."""

    def __init__(self, pod: int, memories: Mapping[int, RankMemory], first: FirstPod) -> None:
        """``memories``: by rank."""
        self._pod, self._memories, self._first = pod, memories, first
        self._last: Restarted | None = None
        self._failed_elsewhere: set[int] = set()

    @property
    def restarts(self) -> int:
        """How many there have been."""
        return 0 if self._last is None else self._last.count

    @property
    def failed_elsewhere(self) -> bool:
        """Whether the ranks must end since one of another pod failed."""
        return self.restarts in self._failed_elsewhere

    def environment(self, rank: int) -> dict[str, str]:
        """What tells a rank's process."""
        return {**self._memories[rank].environment(), **({} if self._last is None else self._last.environment())}

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell``, from another thread, once ``failed_elsewhere`` holds of the ranks that start now."""
        threading.Thread(target=self._watch, args=(self.restarts, tell), name="gang", daemon=True).start()

    def decide(self, ends: Sequence[End], is_leaving: Callable[[], bool]) -> Verdict | None:
        """Whether the pod's ranks, which have ended so, start again, and when; None: the pod ends.

        What it decides for counts as done. ``is_leaving``: whether the pod ends whatever is decided.
        """
        told = [RankEnd(rank=end.rank, status=end.status, asked=end.asked) for end in ends]
        held = sorted(steps_of_all(self._memories))
        said = PodEnds(pod=self._pod, restarts=self.restarts, ends=told, held=held, leaves=False)
        began = heard = time.monotonic()
        while True:
            late = max(time.monotonic() - heard - SILENT_S, time.monotonic() - began - PARTED_S - SILENT_S) > 0
            said = replace(said, leaves=is_leaving() or late)
            try:
                verdict = self._first.report(said, ASK_S)
                heard = time.monotonic()
            except Unreachable as error:
                verdict = None
                if not said.leaves:
                    log.warning("the gang's first pod does not answer", error=str(error))
                    time.sleep(ASK_S)
            if verdict is not None or said.leaves:
                break
        if verdict is None or not verdict.again or said.leaves:
            log.info("no restart in place", reason="the pod ends" if verdict is None else verdict.reason)
            return None
        self._last = Restarted(verdict.restarts, verdict.reason)
        return verdict

    def close(self) -> None:
        """The pod ends."""
        self._first.close()

    def _watch(self, restarts: int, tell: Callable[[], None]) -> None:
        quiet = False
        while self.restarts == restarts:
            try:
                if self._first.has_failed(restarts, WATCH_S):
                    self._failed_elsewhere.add(restarts)
                    tell()
                    return
                quiet = False
            except Unreachable as error:
                # Its ranks' connections tell of a pod that is gone, and it may not be there yet.
                if not quiet:
                    log.warning("the gang's first pod does not answer, asking again", error=str(error))
                quiet = True
                time.sleep(ASK_S)
            except Exception:
                log.exception("failures in other pods are not heard of")
                return
