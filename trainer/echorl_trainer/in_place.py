"""Whether the ranks of a gang start again where they are, from copies in memory that outlives their processes.

    each pod:   a rank failed, here or in another pod --> all ranks end --PodEnds--> the first pod
    first pod:  all pods have said how theirs ended --Verdict, the same for all--> start again, or end

No rank starts before all of the gang have ended, so none meets a process of before at the address where ranks meet.

The first pod's part is ``agreement.py``. Where neighbours hold copies (mirror.py), a lost pod is waited for, the first
one too: another one takes its place in the gang, with what its neighbour held of it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from msgspec.structs import replace

from echorl_core.memory_copies import RankMemory, Restarted, steps_of_all
from echorl_core.wire.in_place import Gang, Joined, PodEnds, RankEnd, Verdict
from echorl_trainer.agreement import PARTED_S
from echorl_trainer.mirror import Mirroring, Mirrors, Unreachable
from echorl_trainer.rank_ends import End

log = structlog.get_logger()

SILENT_S = 15.0
"""How long a pod that knows how its ranks ended waits for an answer, any, of a first pod that nobody replaces."""
ASK_S = 1.0
"""Of one question for the verdict; a pod that is told to end meanwhile notices it after that."""
WATCH_S = 20.0
"""Of one question whether a rank has failed elsewhere."""


class FirstPod(Protocol):
    """Who decides for the gang."""

    def report(self, ends: PodEnds, wait_s: float) -> Verdict | None:
        """Say how a pod's ranks ended, as often as one likes; what follows, or None if that is not known in time."""
        ...

    def has_failed(self, restarts: int, first: str, wait_s: float) -> bool:
        """Whether ranks that ``restarts`` came before must end since one of the gang failed; False: not in time.

        ``first``: name of the first pod that they were started with; empty: it has none.
        """
        ...

    def join(self, pod: int, instance: str, wait_s: float) -> Joined | None:
        """Say, as often as one likes, that a pod of that name is there; what it must know before its ranks start.

        None: the first pod does not know that in time.
        """
        ...

    def close(self) -> None:
        """This pod ends."""
        ...


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
        self.meet(verdict.gang.instances, pod)
        self.held.restarted(verdict.gang.restarts, step)
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
        self._known: Gang | None = None
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
        return self._mirror is not None

    def takes_place(self, is_leaving: Callable[[], bool]) -> bool:
        """Whether this pod takes the place of a lost one: its copies were fetched, its ranks start with all others.

        ``is_leaving``: whether it ends.

        Raises:
            Unreachable: the first pod does not answer in time.
        """
        if self._mirror is None:
            return False
        until = time.monotonic() + self._mirror.join_s
        while (joined := self._joined(self._mirror.instance)) is None:
            if is_leaving() or time.monotonic() > until:
                raise Unreachable("the pods of the gang do not all meet")
        self._known = gang = joined.gang
        if joined.replaces:
            self._last = Restarted(gang.restarts, "", gang.replacements)
            log.warning("this pod takes the place of a lost one", pod=self._pod, restarts=gang.restarts)
            until = time.monotonic() + self._mirror.within_s
            self._mirror.meet(gang.instances, self._pod)
            self._mirror.own.fetch(gang.restarts, until, lambda: not is_leaving())
        return joined.replaces

    def _joined(self, instance: str) -> Joined | None:
        try:
            return self._first.join(self._pod, instance, ASK_S)
        except Unreachable:
            time.sleep(ASK_S)
            return None

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
        said = PodEnds(
            pod=self._pod,
            restarts=self.restarts,
            ends=told,
            held=held,
            leaves=False,
            instance=instance,
            known=self._known,
        )
        began = heard = time.monotonic()
        silent_s = SILENT_S + (0.0 if self._mirror is None else self._mirror.within_s)
        while True:
            late = max(time.monotonic() - heard - silent_s, time.monotonic() - began - silent_s - PARTED_S) > 0
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
        self._last = Restarted(verdict.gang.restarts, verdict.reason, verdict.gang.replacements)
        if self._mirror is not None and verdict.step is not None:
            self._known = verdict.gang
            self._mirror.restarted(verdict, verdict.step, self._pod)
        return verdict

    def close(self) -> None:
        """The pod ends."""
        self._first.close()

    def _watch(self, restarts: int, tell: Callable[[], None]) -> None:
        quiet = False
        first = "" if self._known is None else self._known.instances[0]
        while self.restarts == restarts:
            try:
                if self._first.has_failed(restarts, first, WATCH_S):
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
