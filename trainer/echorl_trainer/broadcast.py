"""Mode ``nccl``: a version goes to all workers that ask for it, at once, through a process group with them.

    worker   POST .../join, waits -> a seat in a group, or a refusal that says why: it then fetches over HTTP
    thread   all that asked for the version before have asked, or 2 s are over -> group -> broadcast

Where ranks share a version each sends its files (part_sender.py), and all are in the group, before the workers. This is
the one place that decides who is in a group. The group stays for as long as the same workers ask; one that
comes, goes or dies has it made anew, and the loop waits for none of this.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import structlog
import torch
from msgspec.structs import replace
from torch._C._distributed_c10d import TCPStore

from echorl_collective.group import BroadcastGroup, GroupError, gpu_of, library_of
from echorl_core.wire.broadcast import JoinRequest, Seat
from echorl_trainer.health import Watch
from echorl_trainer.part_sender import Turn, done_key, flats_of, turn_key
from echorl_trainer.sharing import dealt
from echorl_trainer.snapshots import Snapshot

log = structlog.get_logger()

GATHER_S = 2.0
"""For the others to ask, after the first one has."""
SLICE_BYTES = 32 << 20
_TIMEOUT_S, _SLOWEST_BYTES_PER_S = 10.0, 100e6
"""For a broadcast: so many seconds, and its bytes at this rate."""
_KEPT_TURNS = 8
_CONFIRM_S = 5.0
"""For the other ranks of the trainer to say how a broadcast ended, after it has ended here."""


class JoinRefused(ValueError):
    """The worker gets no seat; the text says why."""


@dataclass
class _Round:
    """One version on its way."""

    snapshot: Snapshot
    asked: dict[str, tuple[JoinRequest, Future[Seat]]] = field(default_factory=dict)
    first_at: float = 0.0
    """When the first one asked."""


class Broadcaster:
    """Sends versions, one after the other, in a thread of its own."""

    def __init__(
        self,
        device: torch.device,
        watch: Watch,
        *,
        attempt: int,
        sent: Callable[[int], object] = lambda _: None,
        gather_s: float = GATHER_S,
        slice_bytes: int = SLICE_BYTES,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """``sent`` is told the bytes of each broadcast, times its workers."""
        self._device, self._attempt, self._sent = device, attempt, sent
        self._gather_s, self._slice_bytes, self._timeout_s = gather_s, slice_bytes, timeout_s
        self._library = library_of(device)
        self._gpus = {gpu_of(device)}
        """Of the trainer's ranks."""
        self._num_ranks = 1
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._words: TCPStore | None = None
        """The same for turns, by a connection that is never waited at; None: there are no other ranks."""
        self._turns = 0
        self._changed = threading.Condition()
        self._open: list[_Round] = []
        """Versions that may be asked for, the newest last: older ones only as long as somebody waits for them."""
        self._known: set[str] = set()
        """Workers that asked for the version before, in time or late."""
        self._group: BroadcastGroup | None = None
        self._members: tuple[str, ...] = ()
        """Workers in the group, by rank, after the trainer's."""
        watch.thread("broadcaster", self._work)

    @property
    def port(self) -> int:
        """Of the store, for the other ranks."""
        return self._store.port

    def share(self, gpus: Sequence[str | None]) -> None:
        """Have versions sent by several ranks, on these GPUs in the order of ranks; before anything is offered."""
        self._gpus, self._num_ranks = set(gpus), len(gpus)
        self._words = TCPStore("localhost", self._store.port, is_master=False)

    def offer(self, snapshot: Snapshot) -> None:
        """Have ``snapshot``, which the caller uses, sent to whoever asks for it before there is a newer one."""
        with self._changed:
            unwanted = [one for one in self._open if not one.asked]
            self._open = [one for one in self._open if one.asked]
            snapshot.use()
            self._open.append(_Round(snapshot))
            for one in unwanted:
                self._tell(Turn(version=one.snapshot.version))
        for one in unwanted:
            one.snapshot.release()

    def join(self, attempt: int, version: int, request: JoinRequest) -> "Future[Seat]":
        """Ask for a seat. The future has it when the group is to be formed, at the latest after ``gather_s``.

        Raises:
            JoinRefused: at once, or from the future.
        """
        if request.library != self._library:
            raise JoinRefused(f"library: found {request.library}, the trainer has {self._library}")
        if request.gpu is not None and request.gpu in self._gpus:
            raise JoinRefused(f"gpu: {request.gpu} is the trainer's own, and NCCL takes one peer from each")
        with self._changed:
            found = next((one for one in self._open if one.snapshot.version == version), None)
            if found is None or attempt != self._attempt:
                self._known.add(request.worker)
                raise JoinRefused(f"the broadcast of attempt {attempt} version {version} has begun, or is over")
            others = [one for one, _ in found.asked.values() if one.worker != request.worker]
            if request.gpu is not None and any(one.gpu == request.gpu for one in others):
                raise JoinRefused(f"gpu: another worker on {request.gpu} was first, and NCCL takes one peer from each")
            seat: Future[Seat] = Future()
            found.first_at = found.first_at or time.monotonic()
            found.asked[request.worker] = request, seat
            self._known.add(request.worker)
            self._changed.notify_all()
            return seat

    def _work(self) -> None:
        while True:
            chosen = self._gathered()
            try:
                self._send(chosen)
            except RuntimeError as error:  # torch's are such, too
                self._leave()
                log.warning(
                    "a broadcast failed, engines fetch the version over HTTP",
                    version=chosen.snapshot.version,
                    workers=sorted(chosen.asked),
                    error=str(error),
                )
            finally:
                chosen.snapshot.release()

    def _gathered(self) -> _Round:
        """The oldest version that is asked for, once all have asked that will be waited for; it is closed then."""
        with self._changed:
            while True:
                found = next((one for one in self._open if one.asked), None)
                if found is None:
                    self._changed.wait()
                    continue
                left = found.first_at + self._gather_s - time.monotonic()
                # Without a group nobody knows how many will come.
                if left <= 0 or (self._members and self._known <= found.asked.keys()):
                    self._open.remove(found)
                    self._known = set(found.asked)
                    return found
                self._changed.wait(left)

    def _send(self, chosen: _Round) -> None:
        whole = chosen.snapshot.whole
        sizes = {one.name: one.size - len(one.header) for one in whole}
        size = sum(sizes.values())
        began = time.monotonic()
        senders = dealt([one.size for one in whole], self._num_ranks) if self._num_ranks > 1 else []
        seat = self._seated(chosen, size, senders)
        with self._changed:
            turn = self._tell(Turn(version=chosen.snapshot.version, seat=seat, sizes=sizes))
        if self._group is None:
            self._group = BroadcastGroup(seat, self._store, self._device)
        formed = time.monotonic()
        self._group.broadcast(flats_of(chosen.snapshot, sizes), seat)
        self._confirm(turn)
        workers = seat.size - self._num_ranks
        self._sent(size * workers)
        log.info(
            "a version was broadcast",
            version=chosen.snapshot.version,
            workers=workers,
            bytes=size,
            group_s=round(formed - began, 4),
            seconds=round(time.monotonic() - formed, 4),
        )

    def _tell(self, turn: Turn) -> int:
        """Say to the other ranks what becomes of a version, by whoever holds the lock; the turn's number."""
        number, self._turns = self._turns, self._turns + 1
        if self._words is not None:
            self._words.set(turn_key(number), msgspec.json.encode(turn).decode())
            # Long since read: a rank's memory has room for two versions.
            self._words.delete_key(turn_key(number - _KEPT_TURNS))
        return number

    def _confirm(self, turn: int) -> None:
        """Hear of the other ranks that they have done their part.

        Raises:
            GroupError: one has not, and is no longer in the group.
        """
        keys = {rank: done_key(turn, rank) for rank in range(1, self._num_ranks)}
        if keys:
            self._store.wait(list(keys.values()), timedelta(seconds=_CONFIRM_S))
        for rank, key in keys.items():
            if problem := self._store.get(key).decode():
                raise GroupError(f"rank {rank} of the trainer: {problem}")
            self._store.delete_key(key)

    def _seated(self, chosen: _Round, size: int, senders: list[int]) -> Seat:
        """Tell all who asked their seats; the publisher's own."""
        promised = {
            worker: seat for worker, (_, seat) in sorted(chosen.asked.items()) if seat.set_running_or_notify_cancel()
        }
        workers = tuple(promised)
        held = {chosen.asked[worker][0].group for worker in workers}
        if self._group is None or workers != self._members or held != {self._group.name}:
            self._leave()
            self._members = workers
        name = self._group.name if self._group is not None else secrets.token_hex(8)
        own = Seat(
            group=name,
            port=self._store.port,
            rank=0,
            size=self._num_ranks + len(workers),
            senders=senders,
            slice_bytes=self._slice_bytes,
            timeout_s=self._timeout_s + size / _SLOWEST_BYTES_PER_S,
        )
        for rank, seat in enumerate(promised.values(), start=self._num_ranks):
            seat.set_result(replace(own, rank=rank))
        return own

    def _leave(self) -> None:
        group, self._group, self._members = self._group, None, ()
        if group is not None:
            group.close()
