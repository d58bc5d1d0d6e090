"""The first pod's decisions for all pods of a gang: whether their ranks start again in place, and who is of it.

Where neighbours hold copies (mirror.py) every pod has a name of its own and joins before its ranks start. Another name
takes a lost pod's place, and whoever is not of the gang any more is not heard. The first pod begins when it has heard
of all others: if any of them knows another first pod, that one is lost, and this one goes on from what they know.
"""

import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from echorl_core.config import MemoryConfig
from echorl_core.names import NEVER_RESTARTED, ExitCode, Role
from echorl_core.restarts import Action, Death, Ledger, RestartPolicy, decide
from echorl_core.wire.in_place import Gang, Joined, PodEnds, RankEnd, Verdict
from echorl_trainer.mirror import Refused
from echorl_trainer.rank_ends import End

PARTED_S = 60.0
"""Longest time between a rank's failure, as the first pod hears of it, and the end of all other ranks of the gang."""


class Agreement:
    """The first pod's decisions for all pods of the gang. Thread-safe."""

    def __init__(self, config: MemoryConfig, pods: int, *, instance: str = "", parted_s: float = PARTED_S) -> None:
        """``instance``: the first pod's name, where others may take a pod's place."""
        self._config, self._pods, self._instance = config, pods, instance
        # Whoever lets pods through is to give up first: it knows why there is none.
        self._parted_s = parted_s + config.replaced_within_s if config.mirror else parted_s
        self._changed = threading.Condition()
        self._ends: dict[int, PodEnds] = {}
        """By pod, since the last restart."""
        self._since = 0
        """Restarts that another first pod decided."""
        self._verdicts: list[Verdict] = []
        """By the number of restarts before them, from ``since`` on; one that is no restart is the last one."""
        self._until: float | None = None
        self._unanswered: set[int] = set()
        self._ledger = Ledger()
        self._instances: dict[int, str] = {}
        """Names of the pods that are heard, by index."""
        self._knows: dict[int, Gang | None] = {}
        """What other pods were told before this one began, by index."""
        self._has_begun = not config.mirror
        self._is_leaving = False
        """The first pod itself ends."""
        self._gone: set[str] = set()
        """Names of pods that are not heard any more."""
        self._replaced: set[int] = set()
        """Pods that have taken the place of others since the last restart."""
        self._replacements = 0
        """Restarts so far that any of these took part in."""

    @property
    def _restarts(self) -> int:
        return self._since + sum(verdict.again for verdict in self._verdicts)

    @property
    def _number(self) -> int:
        """Of the verdict that is due."""
        return self._since + len(self._verdicts)

    @property
    def _members(self) -> tuple[str, ...]:
        return tuple(self._instances.get(pod, "") for pod in range(self._pods)) if self._config.mirror else ()

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Note how a pod's ranks ended; the verdict, or None if not all others have in time. Idempotent.

        Raises:
            Refused: another pod has taken its place, or this one's.
        """
        with self._changed:
            self._check_first("" if ends.known is None else ends.known.instances[0])
            if ends.instance in self._gone and not ends.leaves:
                raise Refused(f"pod {ends.pod} is another one now")
            if ends.pod == 0 and not self._has_begun:
                self._begin()  # nobody came
            if not self._has_met(ends.pod, ends.instance, ends.known, wait_s):
                return None
            # Of one that missed the answer of a first pod before, too: its ranks have ended.
            restarts = max(ends.restarts, self._since)
            if ends.leaves and self._config.mirror:
                self._leaves(ends, restarts)
                return None
            if restarts == self._number:
                self._ends[ends.pod] = ends
                self._unanswered.add(ends.pod)
                if self._until is None and _has_failed(ends):
                    self._until = time.monotonic() + self._parted_s
                self._changed.notify_all()
            self._wait_for(lambda: self._known(restarts) is not None, wait_s)
            return self._known(restarts)

    def join(self, pod: int, instance: str, wait_s: float) -> Joined | None:
        """Note that a pod is there, also that it takes the place of another one, which is not heard any more then.

        None: the first pod has not heard of all others in time.

        Raises:
            Refused: that name's place was taken.
        """
        with self._changed:
            if instance in self._gone:
                raise Refused(f"pod {pod} is another one now")
            if not self._has_met(pod, instance, None, wait_s):
                return None
            before = self._instances.get(pod)
            if before != instance:
                self._instances[pod] = instance
                if before is not None:
                    self._gone.add(before)
                    self._replaced.add(pod)
                    self._ends.pop(pod, None)
                    self._all_end()
            return Joined(gang=self._gang(self._restarts), replaces=pod in self._replaced)

    def _has_met(self, pod: int, instance: str, known: Gang | None, wait_s: float) -> bool:
        """Note who is there, until all are; whether all are in time."""
        if not self._has_begun:
            self._instances[pod], self._knows[pod] = instance, known
            if len(self._instances) == self._pods:
                self._begin()
        return self._wait_for(lambda: self._has_begun, wait_s)

    def _begin(self) -> None:
        """Go on from where the first pod before this one stood, if there was one."""
        self._has_begun = True
        known = [one for one in self._knows.values() if one is not None]
        if known:
            newest = max(known, key=lambda one: one.restarts)
            self._since, self._replacements = newest.restarts, newest.replacements
            self._gone = {name for one in known for name in one.instances} - set(self._members)
            self._replaced = {pod for pod, name in enumerate(self._members) if name != newest.instances[pod]}
            self._all_end()
        self._changed.notify_all()

    def _check_first(self, known: str) -> None:
        """``known``: name of the first pod that the caller knows; empty: none.

        Raises:
            Refused: another pod has taken this one's place.
        """
        if self._has_begun and known and known != self._instance and known not in self._gone:
            raise Refused("pod 0 is another one now")

    def _leaves(self, ends: PodEnds, restarts: int) -> None:
        """A pod ends, and another one may take its place: all others end their ranks, and wait for it."""
        self._gone.add(ends.instance)
        self._is_leaving = self._is_leaving or ends.pod == 0
        if restarts == self._number:
            self._ends.pop(ends.pod, None)
            self._all_end()

    def _all_end(self) -> None:
        self._until = self._until or time.monotonic() + self._parted_s
        self._changed.notify_all()

    def has_failed(self, restarts: int, first: str, wait_s: float) -> bool:
        """Whether a rank that ``restarts`` came before has failed, or the pod ``first`` is lost, within ``wait_s``.

        Raises:
            Refused: another pod has taken this one's place.
        """
        with self._changed:
            self._check_first(first)
            if first and first != self._instance:
                return True
            return self._wait_for(lambda: restarts < self._restarts or self._until is not None, wait_s)

    def answered(self, pod: int) -> None:
        """Note that a pod has been told its last verdict."""
        with self._changed:
            self._unanswered.discard(pod)
            self._changed.notify_all()

    def close(self) -> None:
        """Wait a moment for the other pods' answers to be on their way."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_leaving or not self._unanswered - {0}, 5.0)

    def _wait_for(self, is_true: Callable[[], bool], wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while not is_true() and (left := until - time.monotonic()) > 0:
            due = left if self._until is None else self._until - time.monotonic()
            self._changed.wait(max(0.01, min(left, due)))
        return is_true()

    def _known(self, restarts: int) -> Verdict | None:
        if restarts == self._number and (verdict := self._decided()) is not None:
            self._verdicts.append(verdict)
            if verdict.again:
                self._ends, self._until, self._replaced = {}, None, set()
                self._replacements = verdict.gang.replacements
            self._changed.notify_all()
        return self._verdicts[restarts - self._since] if restarts < self._number else None

    def _decided(self) -> Verdict | None:
        gang = self._gang(self._number)
        if leaving := [pod for pod, said in self._ends.items() if said.leaves]:
            return Verdict(again=False, gang=gang, reason=f"pod {leaving[0]} of the gang ends")
        if len(self._ends) == self._pods:
            return self._of_all(gang)
        if self._until is None or time.monotonic() < self._until:
            return None
        missing = sorted(set(range(self._pods)) - set(self._ends))
        reason = f"pods {missing} did not say within {self._parted_s:.0f} s how their ranks ended"
        return Verdict(again=False, gang=gang, reason=reason)

    def _gang(self, restarts: int) -> Gang:
        return Gang(restarts=restarts, replacements=self._replacements, instances=self._members)

    def _of_all(self, before: Gang) -> Verdict:
        ends = [end for pod in sorted(self._ends) for end in self._ends[pod].ends]
        held = max(set.intersection(*(set(said.held) for said in self._ends.values())), default=None)
        failed = [end for end in map(_end, ends) if end.code != ExitCode.OK and not end.asked]
        passed_on = {*self._config.passed_on, ExitCode.NOTICE}
        nothing = Verdict(again=False, gang=before, reason="a new attempt may mend it, or nothing has to")
        if held is None or any(end.code in passed_on for end in failed):
            return nothing
        is_over = all(end.status == ExitCode.OK for end in ends)
        if self._replaced and not is_over and not any(end.code in NEVER_RESTARTED for end in failed):
            # Whoever lets pods through counts the loss of the ones before.
            return Verdict(
                again=True,
                gang=replace(before, restarts=before.restarts + 1, replacements=before.replacements + 1),
                reason=f"others have taken the place of lost pods: {', '.join(map(str, sorted(self._replaced)))}",
                step=held,
                replaced=tuple(sorted(self._replaced)),
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
            gang=replace(before, restarts=before.restarts + 1),
            reason=decision.reason,
            delay_s=decision.delay_s,
            step=held,
        )


def _end(said: RankEnd) -> End:
    return End(said.rank, said.status, said.asked)


def _has_failed(ends: PodEnds) -> bool:
    """Whether others need not go on; a pod that was told to end, or saved after a notice, lets them save too."""
    expected = (ExitCode.OK, ExitCode.NOTICE)
    return any(not end.asked and _end(end).code not in expected for end in ends.ends)
