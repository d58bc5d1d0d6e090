"""Memory that outlives a trainer rank's process: two slots, each of which holds the rank's state as of one step.

    whoever starts the ranks --makes, keeps--> two anonymous files in memory a rank --inherited--> the rank's process

A slot is a file: its head, then what the rank puts there, then a record that says what that is. The head
is written last, so a slot is whole or it is none. What becomes of the rank's process does not matter to it; with the
process that made it, it is gone. No torch: who starts the ranks only asks which steps are whole.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core import names

HEAD_BYTES = 65536
"""Where a slot's content begins: at the largest page that a machine may have, as mappings begin at pages."""
_WORD = struct.Struct("<Q")
"""Step + 1; 0: none."""
_HEAD = struct.Struct("<QQQ")
"""Step + 1 (0: the slot is not whole), where its record begins, the record's length."""


@dataclass(frozen=True)
class Slot:
    """One file in memory."""

    file: int
    """Its descriptor."""

    @property
    def step(self) -> int | None:
        """The step that it holds; None: it is not whole."""
        return self._head()[0] - 1 if self._head()[0] else None

    def clear(self) -> None:
        """It holds nothing from here on."""
        os.pwrite(self.file, _HEAD.pack(0, 0, 0), 0)

    def seal(self, step: int, record: bytes, at: int) -> None:
        """It holds ``step`` from here on; its record is put ``at`` that byte."""
        written = 0
        while written < len(record):
            written += os.pwrite(self.file, record[written:], at + written)
        self.complete(step, (at, len(record)))

    def record(self) -> bytes:
        """What ``seal`` was given; of a whole slot."""
        at, size = self.record_place
        return os.pread(self.file, size, at)

    @property
    def record_place(self) -> tuple[int, int]:
        """Where the record of a whole slot begins, and its length: what is held ends with it."""
        _, at, size = self._head()
        return at, size

    def complete(self, step: int, place: tuple[int, int]) -> None:
        """It holds ``step`` from here on: content and record were written before, as ``record_place`` says."""
        os.pwrite(self.file, _HEAD.pack(step + 1, *place), 0)

    def _head(self) -> tuple[int, int, int]:
        found = os.pread(self.file, _HEAD.size, 0)
        return _HEAD.unpack(found) if len(found) == _HEAD.size else (0, 0, 0)


class MirrorNote:
    """What a rank and who started it tell each other of copies at a neighbour: two steps, in a file in memory."""

    def __init__(self, file: int) -> None:
        self.file = file
        """Its descriptor."""

    @property
    def wanted(self) -> int | None:
        """The step, held by all ranks, that is to be held by the neighbour too; None: none yet."""
        return self._read(0)

    @property
    def done(self) -> int | None:
        """The newest step that the neighbour holds of this rank; None: it holds none."""
        return self._read(8)

    def want(self, step: int | None) -> None:
        """Set ``wanted``. The rank does; who started it, while no rank runs."""
        self._write(0, step)

    def note(self, step: int | None) -> None:
        """Set ``done``; who started the rank does."""
        self._write(8, step)

    def _read(self, at: int) -> int | None:
        found = os.pread(self.file, _WORD.size, at)
        return int(_WORD.unpack(found)[0]) - 1 if len(found) == _WORD.size and any(found) else None

    def _write(self, at: int, step: int | None) -> None:
        os.pwrite(self.file, _WORD.pack(0 if step is None else step + 1), at)


OWN_SLOTS, NEIGHBOURS_SLOTS = 3, 2
"""Of each rank where pods hold copies for each other: of a step that all neighbours hold, one that goes there, and one
that is made; at the neighbour of one that is whole, and one that is received."""


class RankMemory:
    """The slots of one rank: one is whole while the other one is made."""

    def __init__(self, rank: int, *, mirrored: bool = False) -> None:
        """``mirrored``: whether a neighbour is to hold copies too."""
        count = OWN_SLOTS if mirrored else 2
        # Inherited by what is started with them; the name is for people who look at /proc.
        self.slots = tuple(Slot(os.memfd_create(f"echorl-rank-{rank}-{slot}", 0)) for slot in range(count))
        self.mirror = MirrorNote(os.memfd_create(f"echorl-rank-{rank}-mirror", 0)) if mirrored else None

    @property
    def files(self) -> tuple[int, ...]:
        """Descriptors that the rank's process must inherit."""
        return (*(slot.file for slot in self.slots), *(() if self.mirror is None else (self.mirror.file,)))

    @property
    def steps(self) -> set[int]:
        """Steps that are whole."""
        return {step for slot in self.slots if (step := slot.step) is not None}

    def environment(self) -> dict[str, str]:
        """What tells the rank's process of them."""
        slots = {names.ENV_MEMORY: ",".join(str(slot.file) for slot in self.slots)}
        return slots if self.mirror is None else {**slots, names.ENV_MIRROR: str(self.mirror.file)}

    def close(self) -> None:
        """Let the memory go, once no process of the rank has it any more."""
        for file in self.files:
            os.close(file)


@dataclass(frozen=True)
class Restarted:
    """Why a rank's process is there again in its attempt, to go on from memory."""

    count: int
    """How many times that has happened in this attempt."""
    reason: str
    replacements: int = 0
    """In how many of these another pod has taken the place of a lost one."""

    def environment(self) -> dict[str, str]:
        """What tells the rank's process."""
        told = {names.ENV_RESTARTS: str(self.count), names.ENV_RESTART_REASON: self.reason}
        return {**told, names.ENV_REPLACED: str(self.replacements)} if self.replacements else told

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Restarted | None":
        """What a rank's process was told; None: it is the first one of its attempt."""
        count = int(environ.get(names.ENV_RESTARTS) or 0)
        replacements = int(environ.get(names.ENV_REPLACED) or 0)
        return cls(count, environ.get(names.ENV_RESTART_REASON, ""), replacements) if count else None


def slots_from(environ: Mapping[str, str]) -> tuple[Slot, ...] | None:
    """The slots that a rank's process has inherited; None: it has none."""
    files = environ.get(names.ENV_MEMORY)
    return tuple(Slot(int(file)) for file in files.split(",")) if files else None


def mirror_note_from(environ: Mapping[str, str]) -> MirrorNote | None:
    """What a rank's process has inherited for copies at a neighbour; None: there are none."""
    file = environ.get(names.ENV_MIRROR)
    return MirrorNote(int(file)) if file else None


def steps_of_all(memories: Mapping[int, RankMemory]) -> set[int]:
    """Steps that are whole on every one of these ranks."""
    return set.intersection(*(memory.steps for memory in memories.values())) if memories else set()


def held_by_all(memories: Mapping[int, RankMemory]) -> int | None:
    """The newest step that is whole on every rank; None: there is none."""
    return max(steps_of_all(memories), default=None)
