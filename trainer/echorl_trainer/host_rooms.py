"""Host memory for copies of tensors: a room for each, small ones of the device side by side."""

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from echorl_trainer.host_files import pin

_ALIGNED = 64
_SMALL = 16 << 20
"""Bytes up to which a tensor is copied together with others. A copy costs Python 8 us, and once a thousand are under
way the device holds up who asks for one more."""
_TOGETHER = 64 << 20
"""Bytes of what is copied together, and of the device's memory that this takes."""

Place = tuple[str, torch.Size, torch.dtype]
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
        return _view(whole, self.offset, self.shape, self.dtype)


class Span(NamedTuple):
    """Rooms side by side."""

    room: Tensor
    """All of them, uint8 [bytes]."""
    offsets: dict[Place, int]
    """Where each begins."""


class Rooms:
    """Rooms that were made, and stay."""

    def __init__(self, device: torch.device, provide: Provide | None, *, together: bool) -> None:
        """``device``: where what is small comes from; on CUDA rooms are pinned.

        ``provide``: makes room of so many bytes, and says at which byte of the whole it begins; None: of this process.

        ``together``: whether small tensors of it have rooms side by side.
        """
        self._device, self._together = device, together
        self._provide = provide or (lambda size: (mmap.mmap(-1, size), 0))
        self._rooms: dict[Place, Tensor] = {}
        self._stored: dict[Place, Stored] = {}
        self.spans: list[Span] = []
        """Of small tensors."""
        self.size_bytes = 0
        """Of all."""

    def __getitem__(self, place: Place) -> tuple[Tensor, Stored]:
        """The room, and where it is."""
        return self._rooms[place], self._stored[place]

    def make(self, parts: Mapping[Place, Tensor], *, stays: bool) -> None:
        """Make those that are not there. ``stays``: whether the parts remain what they are, and may be told of once."""
        new = {place: part for place, part in parts.items() if place not in self._rooms}
        if not new:
            return
        small = {place: part for place, part in new.items() if stays and self._together and self.is_small(part)}
        whole, start = self._provide(max(_ALIGNED, sum(_padded(part.nbytes) for part in new.values())))
        self.size_bytes += sum(part.nbytes for part in new.values())
        if self._device.type == "cuda":
            pin(torch.frombuffer(whole, dtype=torch.uint8))
        offset, places = 0, {}
        for place, part in (small | new).items():
            # A storage each, as what writes tensors copies those whose storage is larger than they are.
            self._rooms[place] = _view(whole, offset, part.shape, part.dtype)
            self._stored[place] = Stored(start + offset, tuple(part.shape), part.dtype)
            places[place] = (offset, offset + part.nbytes)
            offset += _padded(part.nbytes)
        self.spans += _spans(whole, [(place, *places[place]) for place in small])

    def is_small(self, part: Tensor) -> bool:
        """Whether it is copied together with others."""
        return 0 < part.nbytes <= _SMALL and part.device == self._device and part.is_contiguous()


def _spans(whole: mmap.mmap, rest: list[tuple[Place, int, int]]) -> Iterator[Span]:
    while rest:
        first = rest[0][1]
        span = [(place, begin - first, end - first) for place, begin, end in rest if end - first <= _TOGETHER]
        rest = rest[len(span) :]
        room = torch.frombuffer(whole, dtype=torch.uint8, count=span[-1][2], offset=first)
        yield Span(room, {place: begin for place, begin, _ in span})


def _view(whole: mmap.mmap, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(whole, dtype=dtype, count=count, offset=offset).view(shape)


def _padded(size: int) -> int:
    return size + -size % _ALIGNED
