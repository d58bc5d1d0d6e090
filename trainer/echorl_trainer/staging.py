"""A rank's training state in host memory, as of one step: what a checkpoint's files are written from beside the loop.

    weights, moments, ... --one copy--> this rank's room --torch.distributed.checkpoint, a thread--> files

The room is allocated at the first copy and used again by every later one, so it is as large as the state for as long
as the process lives. On CUDA it is pinned, and the copy runs on a stream of its own beside the next step's forward and
backward passes, which only read; what changes the state waits for it, on the device. Moments that lie in host memory
already are copied too: the next step changes them where they are.
"""

import math
import mmap
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from echorl_trainer.collected import Settled
from echorl_trainer.host_files import pin
from echorl_trainer.shards import local

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


class _Copy(NamedTuple):
    """Of a tensor."""

    part: Tensor
    """This rank's of the original."""
    room: Tensor
    copied: Tensor
    """The room, or where ranks share the original, a tensor that they share likewise."""
    described: Stored

    @property
    def copies(self) -> "list[_Copy]":
        """Itself."""
        return [self]


class _Tree(NamedTuple):
    """What was made of tensors that stay. To walk over thousands takes Python longer than to begin their copy."""

    source: Settled
    copies: list[_Copy]
    copied: dict[str, Any]
    described: dict[str, Any]


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
        self._made: dict[str, _Copy | _Tree] = {}
        """By path: of trees, and of the tensors beside them in the newest state."""
        self._size = 0
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._done: torch.cuda.Event | None = None

    @property
    def size_bytes(self) -> int:
        """What the room takes of this process's memory."""
        return self._size

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with every tensor copied, ranks' parts of shared tensors as parts of shared tensors.

        On CUDA the copies are whole after ``wait``, and until then the originals change only after ``guard``.
        """
        leaves: dict[str, Tensor | Settled] = {}
        _mapped(state_dict, "", leaves.setdefault)
        new = {path: one for path, one in leaves.items() if not self._knows(path, one)}
        found: dict[str, Tensor] = {}
        for path, one in new.items():
            _mapped(dict(one) if isinstance(one, Settled) else one, path, found.setdefault)
        self._allocate([place for path, one in found.items() if (place := _place(path, one)) not in self._room])
        made = {path: self._copy(path, one) for path, one in found.items()}
        self._made |= {
            path: _tree(path, one, made) if isinstance(one, Settled) else made[path] for path, one in new.items()
        }
        copies = [one for path in leaves for one in self._made[path].copies]
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            # All by one call: a call from Python for each takes longer than the device does for a small one.
            torch._foreach_copy_([one.room for one in copies], [one.part for one in copies], non_blocking=True)
        if self._side is not None:
            self._done = self._side.record_event()
        copied: dict[str, Any] = _mapped(state_dict, "", lambda path, _: self._made[path].copied)
        return copied

    def described(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with ``Stored`` for every tensor: where its copy lies. It is the one that was staged last."""
        described: dict[str, Any] = _mapped(state_dict, "", lambda path, _: self._made[path].described)
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

    def _knows(self, path: str, leaf: Tensor | Settled) -> bool:
        known = self._made.get(path)
        return isinstance(known, _Tree) and known.source is leaf

    def _copy(self, path: str, tensor: Tensor) -> _Copy:
        part = local(tensor)
        place = _place(path, tensor)
        room = copied = self._room[place]
        if isinstance(tensor, DTensor):
            like: Any = torch.empty_like(tensor.detach(), device="cpu")
            like._local_tensor = room
            copied = like
        return _Copy(part, room, copied, Stored(self._offsets[place], tuple(part.shape), part.dtype))

    def _allocate(self, places: list[_Place]) -> None:
        if not places:
            return
        sizes = [shape.numel() * dtype.itemsize for _, shape, dtype in places]
        whole, start = self._provide(max(_ALIGNED, sum(map(_padded, sizes))))
        self._size += sum(sizes)
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


def _tree(path: str, source: Settled, made: Mapping[str, _Copy]) -> _Tree:
    copies: list[_Copy] = []
    _mapped(dict(source), path, lambda place, _: copies.append(made[place]))
    return _Tree(
        source,
        copies,
        _mapped(dict(source), path, lambda place, _: made[place].copied),
        _mapped(dict(source), path, lambda place, _: made[place].described),
    )


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
    if isinstance(described, list):
        return [read_back(item, whole) for item in described]
    return described


def _mapped(value: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """``value`` with its tensors and settled trees changed by path; what is no dictionary or list is taken as it is.

    So are tuples, in which torch keeps no tensors, and Python's random state hundreds of numbers.
    """
    if isinstance(value, Tensor | Settled):
        return change(path, value)
    if isinstance(value, dict):
        return {key: _mapped(item, f"{path}/{key}", change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, f"{path}/{number}", change) for number, item in enumerate(value)]
    return value
