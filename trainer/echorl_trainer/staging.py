"""A rank's training state in host memory, as of one step: what a checkpoint's files are written from beside the loop.

    weights, moments, ... --one copy--> this rank's room --torch.distributed.checkpoint, a thread--> files

The room is allocated at the first copy and used again by every later one, so it is as large as the state for as long
as the process lives. On CUDA it is pinned, and the copy runs on a stream of its own beside the next step's forward and
backward passes, which only read; what changes the state waits for it, on the device. Moments that lie in host memory
already are copied too: the next step changes them where they are.
"""

import math
import mmap
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from echorl_trainer.shards import local
from echorl_trainer.snapshots import pin

_ALIGNED = 64
_Place = tuple[str, torch.Size, torch.dtype]
"""Of a tensor: its path in the state, and the shape and dtype of this rank's part."""


Provide = Callable[[int], tuple[mmap.mmap, int]]


@dataclass(frozen=True)
class Stored:
    """Where the copy of a rank's part of a tensor lies."""

    offset: int
    """Bytes from the beginning of the whole."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self, whole: mmap.mmap) -> Tensor:
        """The copy itself, not a copy of it."""
        count = math.prod(self.shape)
        if not count:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(whole, dtype=self.dtype, count=count, offset=self.offset).view(self.shape)


class HostCopies(AsyncStager):
    """Copies nested dictionaries of tensors into memory that it keeps; a copy holds until the next one is made."""

    _synchronize_after_execute = False  # who changes the originals calls ``guard``, who reads the copies ``wait``

    def __init__(self, device: torch.device, provide: "Provide | None" = None) -> None:
        """``device``: where tensors come from that do not lie in host memory.

        ``provide``: makes room of so many bytes, and says at which byte of the whole it begins; None: of this process.
        """
        self._device = device
        self._provide = provide or (lambda size: (mmap.mmap(-1, size), 0))
        self._room: dict[_Place, Tensor] = {}
        self._offsets: dict[_Place, int] = {}
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._done: torch.cuda.Event | None = None

    @property
    def size_bytes(self) -> int:
        """What the room takes of this process's memory."""
        return sum(one.nbytes for one in self._room.values())

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with every tensor copied, ranks' parts of shared tensors as parts of shared tensors.

        On CUDA the copies are whole after ``wait``, and until then the originals change only after ``guard``.
        """
        new: dict[_Place, Tensor] = {}
        _mapped(state_dict, "", lambda path, tensor: new.setdefault(_place(path, tensor), local(tensor)))
        self._allocate([place for place in new if place not in self._room])
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            copied: dict[str, Any] = _mapped(state_dict, "", self._copied)
        if self._side is not None:
            self._done = self._side.record_event()
        return copied

    def described(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with ``Stored`` for every tensor: where its copy lies. Its places have been copied before."""

        def stored(path: str, tensor: Tensor) -> Stored:
            _, shape, dtype = place = _place(path, tensor)
            return Stored(self._offsets[place], tuple(shape), dtype)

        described: dict[str, Any] = _mapped(state_dict, "", stored)
        return described

    def guard(self) -> None:
        """What the device does for the caller from now on comes after the copy: before the originals are changed."""
        if self._done is not None:
            torch.cuda.current_stream(self._device).wait_event(self._done)

    def wait(self) -> None:
        """Return when the copies are whole."""
        if self._done is not None:
            self._done.synchronize()

    def synchronize_staging(self) -> None:
        """Return when the copies are whole."""
        self.wait()

    def close(self) -> None:
        """The room stays for the next copy."""

    def _copied(self, path: str, tensor: Tensor) -> Tensor:
        room = self._room[_place(path, tensor)]
        room.copy_(local(tensor), non_blocking=True)
        if not isinstance(tensor, DTensor):
            return room
        like: Any = torch.empty_like(tensor.detach(), device="cpu")
        like._local_tensor = room
        return like  # type: ignore[no-any-return]

    def _allocate(self, places: list[_Place]) -> None:
        if not places:
            return
        sizes = [shape.numel() * dtype.itemsize for _, shape, dtype in places]
        whole, start = self._provide(max(_ALIGNED, sum(map(_padded, sizes))))
        if self._device.type == "cuda":
            pin(torch.frombuffer(whole, dtype=torch.uint8))
        offset = 0
        for (path, shape, dtype), size in zip(places, sizes, strict=True):
            # A storage each, as what writes tensors copies those whose storage is larger than they are.
            part = (
                torch.frombuffer(whole, dtype=dtype, count=shape.numel(), offset=offset)
                if size
                else torch.empty(0, dtype=dtype)
            )
            self._room[path, shape, dtype] = part.view(shape)
            self._offsets[path, shape, dtype] = start + offset
            offset += _padded(size)


def _place(path: str, tensor: Tensor) -> _Place:
    part = local(tensor)
    return path, part.shape, part.dtype


def _padded(size: int) -> int:
    return size + -size % _ALIGNED


def read_back(described: Any, whole: mmap.mmap) -> Any:
    """What ``HostCopies.described`` described, each tensor a view of ``whole``: this rank's parts."""
    if isinstance(described, Stored):
        return described.tensor(whole)
    if isinstance(described, dict):
        return {key: read_back(item, whole) for key, item in described.items()}
    if isinstance(described, list | tuple):
        return type(described)(read_back(item, whole) for item in described)
    return described


def _mapped(value: Any, path: str, change: Callable[[str, Tensor], Any]) -> Any:
    """``value`` with its tensors changed by path; what is neither tensor nor container is taken as it is."""
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, dict):
        return {key: _mapped(item, f"{path}/{key}", change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, f"{path}/{number}", change) for number, item in enumerate(value))
    return value
