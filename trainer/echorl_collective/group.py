"""One process group of who publishes (the first ranks) and the workers that get it; never the default group.

    TCPStore of the trainer -> all are there -> ProcessGroupNCCL or ProcessGroupGloo -> broadcasts, slice by slice

Bytes go from host memory to host memory. On CUDA each slice passes through one of two buffers on the device, so that a
copy to or from the host runs beside the broadcast of the slice before. Every wait has a deadline; what passes it, or
fails, ends the group, which is then made anew.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from echorl_core.wire.broadcast import Seat, slices

T = TypeVar("T")

_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"
"""A failed communicator is aborted. torch's default ends the process, and with it training."""
_FORM_S = 20.0
"""For a group to be formed, once its members have their seats; NCCL takes some seconds."""
_LOOK_S, _END_LOOK_S = 0.0005, 0.1
_BUFFERS = 2


_Part = tuple[Tensor | None, int, int]
"""A slice, where it is kept here; its bytes; and the rank that sends it."""


class GroupError(RuntimeError):
    """The group could not be formed, or broke; the text names what happened."""


def library_of(device: torch.device) -> str:
    """What carries broadcasts between such devices, with the versions that must be the same on all sides."""
    if device.type == "cuda":
        version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
        return f"nccl {version}, torch {torch.__version__.partition('+')[0]}"
    return f"gloo, torch {torch.__version__.partition('+')[0]}"


def gpu_of(device: torch.device) -> str | None:
    """UUID of the GPU; None of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def store_at(host: str, port: int) -> Store:
    """The trainer's store.

    Raises:
        GroupError: nobody answers there.
    """
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_FORM_S))
    except RuntimeError as error:
        raise GroupError(f"the trainer's store at {host}, port {port}: {_first_line(error)}") from error


class BroadcastGroup:
    """A formed group. It is used by one thread at a time."""

    def __init__(self, seat: Seat, store: Store, device: torch.device) -> None:
        """Meet all others in ``store`` and connect to them.

        Raises:
            GroupError: not all of them came, or connected, in time.
        """
        self.name = seat.group
        self._device, self._rank = device, seat.rank
        self._deadline = 0.0
        self._last: Any = None
        """The newest operation."""
        self._side: torch.cuda.Stream | None = None
        self._buffers: list[Tensor] = []
        try:
            shared = PrefixStore(seat.group, store)
            shared.set(f"here-{seat.rank}", "yes")
            shared.wait([f"here-{rank}" for rank in range(seat.size)], timedelta(seconds=_FORM_S))
            if device.type == "cuda":
                self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                room = torch.empty(_BUFFERS, seat.slice_bytes, dtype=torch.uint8, device=device)
                self._buffers = list(room)
            self._group = _bounded(lambda: _formed(shared, seat, device), _FORM_S)
        except GroupError:
            raise
        except Exception as error:
            raise GroupError(f"the group of {seat.size} was not formed: {_first_line(error)}") from error

    def broadcast(self, flats: Sequence[Tensor | int], seat: Seat, passed: Callable[[], object] = lambda: None) -> None:
        """Bring the bytes in ``flats`` (uint8, on the host) from the rank that sends each to all others, in order.

        ``flats`` have the same sizes on all sides; a number is the size of one that is not kept here. ``passed`` is
        called after each slice.

        Raises:
            GroupError: a peer is gone, or the time is up; the group is of no further use.
        """
        self._deadline = time.monotonic() + seat.timeout_s
        parts = list(_parts(flats, seat))
        try:
            if self._side is None:
                scratch = torch.empty(seat.slice_bytes if seat.senders else 0, dtype=torch.uint8)
                for part, size, sender in parts:
                    self._last = self._group.broadcast(scratch[:size] if part is None else part, sender)
                    self._last.wait(timedelta(seconds=self._left()))
                    passed()
            else:
                self._pass_on_device(parts, self._side, passed)
        except GroupError:
            raise
        except Exception as error:
            raise GroupError(f"the broadcast broke off: {_first_line(error)}") from error

    def close(self) -> None:
        """Leave the group; calls of others in it fail. It does not wait: a thread ends what is under way."""
        group, self._group = self._group, None
        threading.Thread(target=_ended, args=(group, self._last), name="echorl-group-end", daemon=True).start()
        self._last = None

    def _pass_on_device(self, parts: Sequence[_Part], side: torch.cuda.Stream, passed: Callable[[], object]) -> None:
        events: list[torch.cuda.Event] = []
        with torch.cuda.device(self._device):
            for number, (part, size, sender) in enumerate(parts):
                if number >= _BUFFERS:
                    self._await(events[number - _BUFFERS])
                room = self._buffers[number % _BUFFERS][:size]
                with torch.cuda.stream(side):
                    if part is not None and self._rank == sender:
                        room.copy_(part, non_blocking=True)
                    # This has the stream wait, not the host.
                    self._last = self._group.broadcast(room, sender)
                    self._last.wait()
                    if part is not None and self._rank != sender:
                        part.copy_(room, non_blocking=True)
                    events.append(side.record_event())
                passed()
            for event in events[-_BUFFERS:]:
                self._await(event)

    def _await(self, event: torch.cuda.Event) -> None:
        while not event.query():  # type: ignore[no-untyped-call]
            self._left()
            time.sleep(_LOOK_S)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise GroupError("the broadcast did not end in time: a peer is gone, or slow")
        return left


def _parts(flats: Sequence[Tensor | int], seat: Seat) -> Iterator[_Part]:
    for flat, sender in zip(flats, seat.senders or [0] * len(flats), strict=True):
        size = flat if isinstance(flat, int) else flat.numel()
        for first, after in slices(size, seat.slice_bytes):
            yield None if isinstance(flat, int) else flat[first:after], after - first, sender


def _ended(group: Any, last: Any) -> None:
    """Abort a group, and hold it until nothing runs in it: its destructor would wait for that with Python's lock."""
    group.abort()
    while last is not None and not last.is_completed():
        time.sleep(_END_LOOK_S)


def _formed(store: Store, seat: Seat, device: torch.device) -> Any:
    timeout = timedelta(seconds=seat.timeout_s)
    if device.type != "cuda":
        return dist.ProcessGroupGloo(store, seat.rank, seat.size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with torch.cuda.device(device), _variable(_ERROR_HANDLING, _CLEAN_UP_ONLY):
        group = dist.ProcessGroupNCCL(store, seat.rank, seat.size, options)
        # Now, under this call's deadline, and not in the first broadcast.
        group.eager_connect_single_device(device)
    return group


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _bounded(work: Callable[[], T], seconds: float) -> T:
    """What ``work`` returns or raises; GroupError if it takes longer: nothing ends a call that connects by NCCL."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="echorl-group", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise GroupError(f"the group's library did not answer in {seconds:g} s")
    return found[0]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
