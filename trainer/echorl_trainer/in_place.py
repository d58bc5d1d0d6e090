"""Whether the ranks of a gang start again where they are, from copies in memory that outlives their processes.

    each pod:   a rank failed, here or in another pod --> all ranks end --PodEnds--> the first pod
    first pod:  all pods have said how theirs ended --Verdict, the same for all--> start again, or end

No rank starts before all of the gang have ended, so none meets a process of before at the address where ranks meet.

Where neighbours hold copies (mirror.py), a lost pod is waited for: another one takes its place in the gang, with what
its neighbour held of it. Every pod has a name of its own, by which a lost one is not heard any more.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from msgspec.structs import replace

from echorl_core.config import MemoryConfig
from echorl_core.memory_copies import RankMemory, Restarted, steps_of_all
from echorl_core.names import NEVER_RESTARTED, ExitCode, Role
from echorl_core.restarts import Action, Death, Ledger, RestartPolicy, decide
from echorl_core.wire.in_place import Joined, PodEnds, RankEnd, Verdict
from echorl_trainer.mirror import Mirroring, Mirrors, Refused, Unreachable
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


class FirstPod(Protocol):
    """Who decides for the gang."""

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Say how a pod's ranks ended, as often as one likes; what follows, or None if that is not known in time."""
        ...

    def has_failed(self, restarts: int, wait_s: float) -> bool:
        """Whether ranks that ``restarts`` came before must end since one of the gang failed; False: not in time."""
        ...

    def join(self, pod: int, instance: str) -> Joined:
        """Say, as often as one likes, that a pod of that name is there; what it must know before its ranks start."""
        ...

    def close(self) -> None:
        """This pod ends."""
        ...


class Agreement:
    """The first pod's decisions for all pods of the gang. Thread-safe."""

    def __init__(self, config: MemoryConfig, pods: int, *, parted_s: float = PARTED_S) -> None:
        self._config, self._pods = config, pods
        # Whoever lets pods through is to give up first: it knows why there is none.
        self._parted_s = parted_s + config.replaced_within_s if config.mirror else parted_s
        self._changed = threading.Condition()
        self._ends: dict[int, PodEnds] = {}
        """By pod, since the last restart."""
        self._verdicts: list[Verdict] = []
        """By the number of restarts before them; one that is no restart is the last one."""
        self._until: float | None = None
        self._unanswered: set[int] = set()
        self._ledger = Ledger()
        self._instances: dict[int, str] = {}
        """Names of the pods that are heard, by index."""
        self._gone: set[str] = set()
        """Names of pods that are not heard any more."""
        self._replaced: set[int] = set()
        """Pods that have taken the place of others since the last restart."""
        self._replacements = 0
        """Restarts so far that any of these took part in."""

    @property
    def _restarts(self) -> int:
        return sum(verdict.again for verdict in self._verdicts)

    @property
    def _members(self) -> tuple[str, ...]:
        return tuple(self._instances.get(pod, "") for pod in range(self._pods)) if self._config.mirror else ()

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Note how a pod's ranks ended; the verdict, or None if not all others have in time. Idempotent.

        Raises:
            Refused: another pod has taken its place.
        """
        with self._changed:
            if ends.instance in self._gone and not ends.leaves:
                raise Refused(f"pod {ends.pod} is another one now")
            if ends.leaves and self._config.mirror and ends.pod:
                self._leaves(ends)
                return None
            if ends.restarts == len(self._verdicts):
                self._ends[ends.pod] = ends
                self._unanswered.add(ends.pod)
                if self._until is None and _has_failed(ends):
                    self._until = time.monotonic() + self._parted_s
                self._changed.notify_all()
            self._wait_for(lambda: self._known(ends.restarts) is not None, wait_s)
            return self._known(ends.restarts)

    def join(self, pod: int, instance: str) -> Joined:
        """Note that a pod is there, also that it takes the place of another one, which is not heard any more then.

        Raises:
            Refused: that name's place was taken.
        """
        with self._changed:
            if instance in self._gone:
                raise Refused(f"pod {pod} is another one now")
            before = self._instances.get(pod)
            if before != instance:
                self._instances[pod] = instance
                if before is not None:
                    self._gone.add(before)
                    self._replaced.add(pod)
                    self._ends.pop(pod, None)
                    self._all_end()
            return Joined(restarts=self._restarts, replaces=pod in self._replaced, instances=self._members)

    def _leaves(self, ends: PodEnds) -> None:
        """A pod ends, and another one may take its place: all others end their ranks, and wait for it."""
        self._gone.add(ends.instance)
        if ends.restarts == len(self._verdicts):
            self._ends.pop(ends.pod, None)
            self._all_end()

    def _all_end(self) -> None:
        self._until = self._until or time.monotonic() + self._parted_s
        self._changed.notify_all()

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
                self._ends, self._until, self._replaced = {}, None, set()
                self._replacements = verdict.replacements
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
        if held is None or any(end.code in passed_on for end in failed):
            return nothing
        is_over = all(end.status == ExitCode.OK for end in ends)
        if self._replaced and not is_over and not any(end.code in NEVER_RESTARTED for end in failed):
            # Whoever lets pods through counts the loss of the ones before.
            return Verdict(
                again=True,
                restarts=restarts + 1,
                reason=f"others have taken the place of lost pods: {', '.join(map(str, sorted(self._replaced)))}",
                step=held,
                replaced=tuple(sorted(self._replaced)),
                replacements=self._replacements + 1,
                instances=self._members,
            )
        if not failed:
            return nothing
        config = self._config
        policy = RestartPolicy(config.max_restarts, config.backoff_s, config.reset_after_steps)
        deaths = [Death(Role.TRAINER, f"rank {end.rank}", end.status) for end in failed]
        self._ledger = self._ledger.after_progress(held, policy)
        decision = decide(deaths, ledger=self._ledger, policy=policy, is_held=True)
        if decision.action is not Action.RESTART_GANG:
            return nothing
        self._ledger = self._ledger.with_restart(Role.TRAINER, held)
        return Verdict(
            again=True,
            restarts=restarts + 1,
            reason=decision.reason,
            delay_s=decision.delay_s,
            step=held,
            replacements=self._replacements,
            instances=self._members,
        )


def _end(said: RankEnd) -> End:
    return End(said.rank, said.status, said.asked)


def _has_failed(ends: PodEnds) -> bool:
    """Whether others need not go on; a pod that was told to end, or saved after a notice, lets them save too."""
    expected = (ExitCode.OK, ExitCode.NOTICE)
    return any(not end.asked and _end(end).code not in expected for end in ends.ends)


@dataclass(frozen=True)
class Mirror:
    """What a pod holds of another one's copies, and what becomes of its own."""

    pods: int
    held: Mirrors
    """Of the pod before it."""
    own: Mirroring
    """To the pod after it."""
    within_s: float
    """Longest time that a lost pod is waited for."""
    join_s: float
    """Longest time until the first pod answers."""

    @property
    def instance(self) -> str:
        """This pod's name: no other one has it."""
        return self.held.instance

    def meet(self, instances: Sequence[str], pod: int) -> None:
        """Which pods the gang is of: an address may still lead to one that is lost."""
        self.own.meet(instances[(pod + 1) % self.pods])

    def restarted(self, verdict: Verdict, step: int, pod: int) -> None:
        """All ranks of the gang have ended and start again from ``step``."""
        self.meet(verdict.instances, pod)
        self.held.restarted(verdict.restarts, step)
        done = self.own.done
        if pod in verdict.replaced:
            done = step  # it was had from there
        elif (pod + 1) % self.pods in verdict.replaced:
            done = None
        self.own.reset(None if done is None else min(done, step))


class InPlace:
    """One pod's part in restarts of all ranks, from what its process 1 keeps in memory for its own."""

    def __init__(
        self,
        pod: int,
        memories: Mapping[int, RankMemory],
        first: FirstPod,
        mirror: Mirror | None = None,
    ) -> None:
        """``memories``: by rank. ``mirror``: None: a pod that is lost is not waited for."""
        self._pod, self._memories, self._first, self._mirror = pod, memories, first, mirror
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

    @property
    def is_replaced(self) -> bool:
        """Whether another pod takes this one's place if it ends: its ranks need not save then."""
        return self._mirror is not None and self._pod > 0

    def takes_place(self, is_leaving: Callable[[], bool]) -> bool:
        """Whether this pod takes the place of a lost one: its copies were fetched, its ranks start with all others.

        ``is_leaving``: whether it ends.

        Raises:
            Unreachable: the first pod does not answer in time.
        """
        if self._mirror is None:
            return False
        until = time.monotonic() + self._mirror.join_s
        while True:
            try:
                joined = self._first.join(self._pod, self._mirror.instance)
                break
            except Unreachable:
                if is_leaving() or time.monotonic() > until:
                    raise
                time.sleep(ASK_S)
        if joined.replaces:
            self._last = Restarted(joined.restarts, "")
            log.warning("this pod takes the place of a lost one", pod=self._pod, restarts=joined.restarts)
            until = time.monotonic() + self._mirror.within_s
            self._mirror.meet(joined.instances, self._pod)
            self._mirror.own.fetch(joined.restarts, until, lambda: not is_leaving())
        return joined.replaces

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell``, from another thread, once ``failed_elsewhere`` holds of the ranks that start now."""
        if self._mirror is not None:
            self._mirror.own.begin(self.restarts)
        threading.Thread(target=self._watch, args=(self.restarts, tell), name="gang", daemon=True).start()

    def decide(self, ends: Sequence[End], is_leaving: Callable[[], bool]) -> Verdict | None:
        """Whether the pod's ranks, which have ended so, start again, and when; None: the pod ends.

        What it decides for counts as done. ``is_leaving``: whether the pod ends whatever is decided.
        """
        if self._mirror is not None:
            self._mirror.own.end()
        told = [RankEnd(rank=end.rank, status=end.status, asked=end.asked) for end in ends]
        held = sorted(steps_of_all(self._memories))
        instance = "" if self._mirror is None else self._mirror.instance
        said = PodEnds(pod=self._pod, restarts=self.restarts, ends=told, held=held, leaves=False, instance=instance)
        began = heard = time.monotonic()
        longest_s = SILENT_S + PARTED_S + (0.0 if self._mirror is None else self._mirror.within_s)
        while True:
            late = max(time.monotonic() - heard - SILENT_S, time.monotonic() - began - longest_s) > 0
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
        self._last = Restarted(verdict.restarts, verdict.reason, verdict.replacements)
        if self._mirror is not None and verdict.step is not None:
            self._mirror.restarted(verdict, verdict.step, self._pod)
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
