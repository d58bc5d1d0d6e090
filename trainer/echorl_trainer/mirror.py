"""Copies of a pod's memory at its neighbour: what process 1 of each trainer pod holds for the pod before it in a ring.

    pod i, rank r: a step that all ranks hold --HTTP--> pod i + 1: a slot that does not hold the newest of rank r
                                                        its head is written last: the step is whole there

A pod that takes the place of a lost one fetches its ranks' copies from the neighbour. Messages carry the number of
restarts before them: once the ranks of the gang start again, or a pod has come for copies, older ones are refused.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import structlog

from echorl_core.memory_copies import HEAD_BYTES, NEIGHBOURS_SLOTS, RankMemory, Slot, steps_of_all

log = structlog.get_logger()

LOOK_S = 0.1
"""Between two looks at whether there is a step to send."""
AGAIN_S = 1.0
"""Before another try."""
CHUNK_BYTES = 1 << 22


class Refused(Exception):
    """A neighbour's message that is late, or cannot be taken now."""


class Unreachable(Exception):
    """A pod of the gang gave no usable answer; worth another try."""


class Neighbour(Protocol):
    """The next pod in the ring."""

    def meet(self, instance: str) -> None:
        """Talk from now on to the pod of that name alone; empty: to whoever is there."""
        ...

    def put(self, rank: int, slot: Slot, step: int, restarts: int, go_on: Callable[[], bool]) -> None:
        """Have it hold a rank's copy of a step, which it does when this returns.

        Raises:
            Unreachable: it does not; also when ``go_on`` has become false.
        """
        ...

    def steps(self, restarts: int) -> dict[int, set[int]]:
        """Steps that it holds whole, by rank; from now on it takes none that came before ``restarts`` + 1 restarts.

        Raises:
            Unreachable: there was no usable answer.
        """
        ...

    def get(self, rank: int, step: int, into: Slot) -> None:
        """Fetch a rank's copy of a step.

        Raises:
            Unreachable: it did not come whole.
        """
        ...


class Mirrors:
    """What a pod holds for the ranks of the pod before it, in anonymous files of its process 1. Thread-safe."""

    def __init__(self, ranks: range, limit_bytes: int) -> None:
        """``limit_bytes``: of one copy."""
        self.instance = uuid.uuid4().hex
        """Name of the pod: no other one has it."""
        self.limit_bytes = limit_bytes
        name, flags = "echorl-mirror-{}-{}", os.MFD_CLOEXEC  # no rank of this pod has to do with them
        self._slots = {
            rank: tuple(Slot(os.memfd_create(name.format(rank, one), flags)) for one in range(NEIGHBOURS_SLOTS))
            for rank in ranks
        }
        self._lock = threading.Lock()
        self._least = 0
        self._receiving: set[int] = set()

    @contextmanager
    def receiving(self, rank: int, step: int, restarts: int, place: tuple[int, int]) -> Iterator[Slot | None]:
        """A slot to put a copy into, content and record as ``place`` says; when left, it is whole. None: it is there.

        Raises:
            Refused: the rank is none of that pod's, the message is late, or another copy of the rank is under way.
        """
        with self._lock:
            self._check(rank, restarts)
            if rank in self._receiving:
                raise Refused(f"another copy of rank {rank} is under way")
            slots = self._slots[rank]
            there = any(slot.step == step for slot in slots)
            slot = min(slots, key=lambda one: -1 if one.step is None else one.step)
            if not there:
                slot.clear()
                self._receiving.add(rank)
        if there:
            yield None
            return
        try:
            yield slot
            with self._lock:
                self._check(rank, restarts)
                slot.complete(step, place)
        finally:
            with self._lock:
                self._receiving.discard(rank)

    def steps(self, restarts: int) -> dict[int, set[int]]:
        """Steps that are whole, by rank; from now on none is taken that came before ``restarts`` + 1 restarts."""
        with self._lock:
            self._least = max(self._least, restarts + 1)
            return {
                rank: {one for slot in slots if (one := slot.step) is not None} for rank, slots in self._slots.items()
            }

    def slot(self, rank: int, step: int) -> Slot:
        """Where a rank's copy of a step lies; it stays so until copies of later restarts come.

        Raises:
            Refused: it is not held.
        """
        for slot in self._slots.get(rank, ()):
            if slot.step == step:
                return slot
        raise Refused(f"step {step} of rank {rank} is not held here")

    def restarted(self, restarts: int, step: int) -> None:
        """The gang goes on from ``step``: what is beyond it, or still comes from before, is of no use any more."""
        with self._lock:
            self._least = max(self._least, restarts)
            for slot in (one for slots in self._slots.values() for one in slots):
                if slot.step is not None and slot.step > step:
                    slot.clear()

    def _check(self, rank: int, restarts: int) -> None:
        if rank not in self._slots:
            raise Refused(f"rank: found {rank}, accepted are {sorted(self._slots)}")
        if restarts < self._least:
            raise Refused(f"restarts: found {restarts}, accepted are {self._least} and later")


class Mirroring:
    """Sends the ranks' copies to the neighbour, each step that they want there, beside their work."""

    def __init__(self, memories: Mapping[int, RankMemory], neighbour: Neighbour) -> None:
        """``memories``: of this pod's ranks, with what tells which step they want."""
        self._neighbour = neighbour
        self._ranks = {rank: (memory, memory.mirror) for rank, memory in memories.items() if memory.mirror is not None}
        self._lock = threading.Lock()
        self._restarts: int | None = None
        """Of the ranks that run; None: none do."""
        threading.Thread(target=self._run, name="mirror", daemon=True).start()

    def meet(self, instance: str) -> None:
        """Which pod the neighbour is; empty: whoever is there."""
        self._neighbour.meet(instance)

    def begin(self, restarts: int) -> None:
        """Ranks start that ``restarts`` came before."""
        with self._lock:
            self._restarts = restarts

    def end(self) -> None:
        """The ranks have ended: what they held stays as it is, and nothing more is sent."""
        with self._lock:
            self._restarts = None

    def reset(self, done: int | None) -> None:
        """While no rank runs: ``done`` is the newest step that the neighbour holds, and none is wanted yet."""
        with self._lock:
            for _, note in self._ranks.values():
                note.want(None)
                note.note(done)

    @property
    def done(self) -> int | None:
        """The newest step that the neighbour holds of all ranks."""
        steps = [note.done for _, note in self._ranks.values()]
        return None if None in steps else min((one for one in steps if one is not None), default=None)

    def fetch(self, restarts: int, until: float, go_on: Callable[[], bool]) -> None:
        """Fill the ranks' own slots with what the neighbour holds of all of them: after a pod was lost in its place.

        Args:
            restarts: that there have been.
            until: when it is given up, by ``time.monotonic``; nothing is held then.
            go_on: whether to try again.
        """
        while True:
            try:
                self._fetched(restarts)
                return
            except Unreachable as error:
                for memory, _ in self._ranks.values():
                    for slot in memory.slots:
                        slot.clear()
                log.warning("copies are not had from the neighbour", error=str(error))
            if not go_on() or time.monotonic() > until:
                return
            time.sleep(AGAIN_S)

    def _fetched(self, restarts: int) -> None:
        found = self._neighbour.steps(restarts)
        held = set.intersection(*(found.get(rank, set()) for rank in self._ranks))
        for number, step in enumerate(sorted(held, reverse=True)):
            for rank, (memory, _) in self._ranks.items():
                self._neighbour.get(rank, step, memory.slots[number])
        memories = {rank: memory for rank, (memory, _) in self._ranks.items()}
        log.info("copies were had from the neighbour", steps=sorted(steps_of_all(memories)))

    def _run(self) -> None:
        told = False
        while True:
            restarts = self._restarts
            if restarts is None or (step := self._due()) is None:
                time.sleep(LOOK_S)
                continue
            try:
                self._send(step, restarts)
                told = False
            except Unreachable as error:
                if not told and self._restarts == restarts:
                    log.warning("a step is not held by the neighbour, trying again", step=step, error=str(error))
                    told = True
                time.sleep(AGAIN_S)
            except Exception:
                log.exception("copies are not sent to the neighbour any more")
                return

    def _due(self) -> int | None:
        """The step that all ranks want at the neighbour, if it is not there."""
        notes = [note for _, note in self._ranks.values()]
        wanted = {note.wanted for note in notes}
        step = wanted.pop() if len(wanted) == 1 else None
        return step if step is not None and any(note.done != step for note in notes) else None

    def _send(self, step: int, restarts: int) -> None:
        for rank, (memory, note) in self._ranks.items():
            if note.done == step:
                continue
            slot = next((one for one in memory.slots if one.step == step), None)
            if slot is None:
                raise Unreachable(f"rank {rank} does not hold step {step} any more")
            self._neighbour.put(rank, slot, step, restarts, lambda: self._restarts == restarts)
            with self._lock:
                if self._restarts == restarts:
                    note.note(step)


def content(slot: Slot, step: int) -> tuple[int, tuple[int, int]]:
    """Bytes of a whole slot from ``HEAD_BYTES`` on, and the place of its record in it.

    Raises:
        Unreachable: it does not hold ``step``.
    """
    at, size = place = slot.record_place
    if slot.step != step:
        raise Unreachable(f"step {step} is not held any more")
    return at + size - HEAD_BYTES, place
