"""A rank's part of broadcasts where ranks share a version: it sends its own files through the group of all.

    rank 0   turn 0, 1, 2, ...: a version, and either a seat or word that nobody wants it -> its store
    thread   turn -> in the group that it names -> own files sent, others' passed over -> done, or what went wrong

Rank 0 (broadcast.py) decides who is in the group, for each version; it hears how every rank fared before the group is
used again. What fails here costs a broadcast, never the run: engines fetch the version.
"""

import threading
import time
from collections.abc import Mapping

import msgspec
import structlog
import torch
from msgspec.structs import replace
from torch import Tensor
from torch._C._distributed_c10d import Store

from echorl_collective.group import BroadcastGroup
from echorl_core.wire.broadcast import Seat
from echorl_trainer.health import Watch
from echorl_trainer.snapshots import Snapshot

log = structlog.get_logger()

_LOOK_S = 0.05
"""Between two looks for a turn; a wait in the store would log each of its timeouts, and not end with the process."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a version, as rank 0 tells the other ranks (JSON)."""

    version: int
    seat: Seat | None = None
    """Rank 0's; None: it is not broadcast."""
    sizes: dict[str, int] = {}
    """Bytes after the header of every file, in the manifest's order."""


def turn_key(number: int) -> str:
    """Where rank 0 tells a turn."""
    return f"turn-{number}"


def done_key(number: int, rank: int) -> str:
    """Where a rank tells how a turn ended: nothing, or what went wrong."""
    return f"done-{number}-{rank}"


def flats_of(snapshot: Snapshot, sizes: Mapping[str, int]) -> list[Tensor | int]:
    """Each file's bytes after its header (uint8); of another rank's, their number."""
    own = {file.layout.name: file.data.view(torch.uint8) for file in snapshot.files}
    return [own.get(name, size) for name, size in sizes.items()]


class PartSender:
    """Sends this rank's files in a thread of its own, as rank 0 tells."""

    def __init__(self, device: torch.device, watch: Watch, *, rank: int, store: Store) -> None:
        """``store``: rank 0's, by a connection that nothing else uses."""
        self._device, self._rank, self._store = device, rank, store
        self._group: BroadcastGroup | None = None
        self._lock = threading.Lock()
        self._held: dict[int, Snapshot] | None = {}
        """Offered versions, until their turn; None: no turn will come."""
        watch.thread("part-sender", self._work)

    def offer(self, snapshot: Snapshot) -> None:
        """Hold ``snapshot``, which the caller uses, until rank 0 has told what becomes of its version."""
        with self._lock:
            if self._held is not None:
                snapshot.use()
                self._held[snapshot.version] = snapshot

    def _work(self) -> None:
        number = 0
        while (turn := self._told(number)) is not None:
            with self._lock:
                snapshot = None if self._held is None else self._held.pop(turn.version, None)
            if snapshot is None:
                raise RuntimeError(f"version {turn.version} is to be broadcast, and was never offered by this rank")
            problem = ""
            try:
                if turn.seat is not None:
                    self._send(snapshot, turn.seat, turn.sizes)
            except RuntimeError as error:  # torch's are such, too
                problem = str(error) or type(error).__name__
                self._leave()
                log.warning("this rank's part of a broadcast failed", version=turn.version, error=problem)
            finally:
                snapshot.release()
            if turn.seat is not None:
                self._store.set(done_key(number, self._rank), problem)
            number += 1

    def _told(self, number: int) -> Turn | None:
        """The turn, once rank 0 tells it; None: rank 0 is gone, as others' collectives will tell."""
        try:
            while not self._store.check([turn_key(number)]):
                time.sleep(_LOOK_S)
            return msgspec.json.decode(self._store.get(turn_key(number)), type=Turn)
        except RuntimeError as error:
            log.warning("rank 0 tells of no more broadcasts", error=str(error).partition("\n")[0])
        with self._lock:
            held, self._held = self._held or {}, None
        for snapshot in held.values():
            snapshot.release()
        return None

    def _send(self, snapshot: Snapshot, seat: Seat, sizes: Mapping[str, int]) -> None:
        own = replace(seat, rank=self._rank)
        if self._group is not None and self._group.name != own.group:
            self._leave()
        if self._group is None:
            self._group = BroadcastGroup(own, self._store, self._device)
        self._group.broadcast(flats_of(snapshot, sizes), own)

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()
