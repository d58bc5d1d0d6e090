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
        os.pwrite(self.file, _HEAD.pack(step + 1, at, len(record)), 0)

    def record(self) -> bytes:
        """What ``seal`` was given; of a whole slot."""
        _, at, size = self._head()
        return os.pread(self.file, size, at)

    def _head(self) -> tuple[int, int, int]:
        found = os.pread(self.file, _HEAD.size, 0)
        return _HEAD.unpack(found) if len(found) == _HEAD.size else (0, 0, 0)


class RankMemory:
    """The slots of one rank: one is whole while the other one is made."""

    def __init__(self, rank: int) -> None:
        # Inherited by what is started with them; the name is for people who look at /proc.
        self.slots = tuple(Slot(os.memfd_create(f"echorl-rank-{rank}-{slot}", 0)) for slot in range(2))

    @property
    def files(self) -> tuple[int, ...]:
        """Descriptors that the rank's process must inherit."""
        return tuple(slot.file for slot in self.slots)

    @property
    def steps(self) -> set[int]:
        """Steps that are whole."""
        return {step for slot in self.slots if (step := slot.step) is not None}

    def environment(self) -> dict[str, str]:
        """What tells the rank's process of them."""
        return {names.ENV_MEMORY: ",".join(map(str, self.files))}

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

    def environment(self) -> dict[str, str]:
        """What tells the rank's process."""
        return {names.ENV_RESTARTS: str(self.count), names.ENV_RESTART_REASON: self.reason}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Restarted | None":
        """What a rank's process was told; None: it is the first one of its attempt."""
        count = int(environ.get(names.ENV_RESTARTS) or 0)
        return cls(count, environ.get(names.ENV_RESTART_REASON, "")) if count else None


def slots_from(environ: Mapping[str, str]) -> tuple[Slot, ...] | None:
    """The slots that a rank's process has inherited; None: it has none."""
    files = environ.get(names.ENV_MEMORY)
    return tuple(Slot(int(file)) for file in files.split(",")) if files else None


def steps_of_all(memories: Mapping[int, RankMemory]) -> set[int]:
    """Steps that are whole on every one of these ranks."""
    return set.intersection(*(memory.steps for memory in memories.values())) if memories else set()


def held_by_all(memories: Mapping[int, RankMemory]) -> int | None:
    """The newest step that is whole on every rank; None: there is none."""
    return max(steps_of_all(memories), default=None)
