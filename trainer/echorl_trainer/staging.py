"""A rank's training state in host memory, as of one step: what a checkpoint's files are written from beside the loop.

    weights, moments, ... --one copy--> this rank's room --torch.distributed.checkpoint, a thread--> files

The room is allocated at the first copy and used again by every later one, so it is as large as the state for as long
as the process lives. On CUDA it is pinned, and the copy runs on a stream of its own beside the next step's forward and
backward passes, which only read; what changes the state waits for it, on the device. Moments that lie in host memory
already are copied too: the next step changes them where they are.
"""

import mmap
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from echorl_trainer.collected import Settled
from echorl_trainer.host_rooms import Place, Provide, Rooms, Stored
from echorl_trainer.shards import local


class _Copy(NamedTuple):
    """Of a tensor."""

    part: Tensor
    """This rank's of the original."""
    room: Tensor
    copied: Tensor
    """The room, or where ranks share the original, a tensor that they share likewise."""
    described: Stored


class Described(NamedTuple):
    """Nested dictionaries with ``Stored``, pickled once, since pickling holds up every other thread."""

    pickled: bytes


class _Tree(NamedTuple):
    """What was made of tensors that stay. To walk over thousands takes Python longer than to begin their copy."""

    source: Settled
    copies: dict[Place, _Copy]
    copied: dict[str, Any]
    described: Described


class _Pack(NamedTuple):
    """Small tensors that are put side by side on the device, and copied together."""

    parts: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]]
    """Where they are put, and they themselves. Those of a dtype are put there by one call of the device."""
    packed: Tensor
    """In memory of the device that all packs have by turns."""
    room: Tensor


class _Plan(NamedTuple):
    """How the tensors of trees are copied."""

    trees: list[_Tree]
    packs: list[_Pack]
    others: list[_Copy]


class HostCopies(AsyncStager):
    """Copies nested dictionaries of tensors into memory that it keeps; a copy holds until the next one is made."""

    _synchronize_after_execute = False  # who changes the originals calls ``guard``, who reads the copies ``wait``

    def __init__(self, device: torch.device, provide: Provide | None = None, *, together: bool | None = None) -> None:
        """``device``: where tensors come from that do not lie in host memory.

        ``provide``: makes room of so many bytes, and says at which byte of the whole it begins; None: of this process.

        ``together``: whether small tensors are put side by side on the device first, and copied together; None: on
        CUDA, as elsewhere there is nothing to wait for.
        """
        self._device = device
        self._rooms = Rooms(device, provide, together=device.type == "cuda" if together is None else together)
        self._plan = _Plan([], [], [])
        self._made: dict[str, _Copy | _Tree] = {}
        """By path: of trees, and of the tensors beside them in the newest state."""
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._done: torch.cuda.Event | None = None

    @property
    def size_bytes(self) -> int:
        """What the room takes of this process's memory."""
        return self._rooms.size_bytes

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with every tensor copied, ranks' parts of shared tensors as parts of shared tensors.

        On CUDA the copies are whole after ``wait``, and until then the originals change only after ``guard``.
        """
        leaves: dict[str, Tensor | Settled] = {}
        _mapped(state_dict, "", leaves.setdefault)
        for path, one in leaves.items():
            if not self._knows(path, one):
                self._make(path, one)
        trees = [made for path in leaves if isinstance(made := self._made[path], _Tree)]
        loose = [made for path in leaves if isinstance(made := self._made[path], _Copy)]
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            if [*map(id, trees)] != [*map(id, self._plan.trees)]:
                self._plan = _Plan([], [], [])  # gives its memory back before another one takes some
                self._plan = self._planned(trees)
            for pack in self._plan.packs:
                for places, parts in pack.parts.values():
                    torch._foreach_copy_(places, parts)
                pack.room.copy_(pack.packed, non_blocking=True)
            if others := [*self._plan.others, *loose]:
                torch._foreach_copy_([one.room for one in others], [one.part for one in others], non_blocking=True)
        if self._side is not None:
            self._done = self._side.record_event()
        copied: dict[str, Any] = _mapped(state_dict, "", lambda path, _: self._made[path].copied)
        return copied

    def described(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same state with where each tensor's copy lies, for ``read_back``. It is the one that was staged last."""
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

    def _make(self, path: str, leaf: Tensor | Settled) -> None:
        if isinstance(leaf, Tensor):
            self._rooms.make({_place(path, leaf): local(leaf)}, stays=False)
            self._made[path] = self._copy(path, leaf)
            return
        found: dict[str, Tensor] = {}
        _mapped(dict(leaf), path, found.setdefault)
        self._rooms.make({_place(place, one): local(one) for place, one in found.items()}, stays=True)
        made = {place: self._copy(place, one) for place, one in found.items()}
        self._made[path] = _Tree(
            leaf,
            {_place(place, one): made[place] for place, one in found.items()},
            _mapped(dict(leaf), path, lambda place, _: made[place].copied),
            Described(pickle.dumps(_mapped(dict(leaf), path, lambda place, _: made[place].described))),
        )

    def _copy(self, path: str, tensor: Tensor) -> _Copy:
        room, stored = self._rooms[_place(path, tensor)]
        copied = room
        if isinstance(tensor, DTensor):
            like: Any = torch.empty_like(tensor.detach(), device="cpu")
            like._local_tensor = room
            copied = like
        return _Copy(local(tensor), room, copied, stored)

    def _planned(self, trees: list[_Tree]) -> _Plan:
        copies = {place: one for tree in trees for place, one in tree.copies.items()}
        longest = max((len(room) for room, _ in self._rooms.spans), default=0)
        packs, packed = [], torch.empty(longest, dtype=torch.uint8, device=self._device)
        for room, offsets in self._rooms.spans:
            # What is not all there, or lies elsewhere now, is copied one by one.
            if not all(place in copies and self._rooms.is_small(copies[place].part) for place in offsets):
                continue
            parts: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
            for place, begin in offsets.items():
                part = copies.pop(place).part.reshape(-1)
                places, originals = parts.setdefault(part.dtype, ([], []))
                places.append(packed[begin : begin + part.nbytes].view(part.dtype))
                originals.append(part)
            packs.append(_Pack(parts, packed[: len(room)], room))
        return _Plan(trees, packs, list(copies.values()))


def _place(path: str, tensor: Tensor) -> Place:
    part = local(tensor)
    return path, part.shape, part.dtype


def read_back(described: Any, whole: mmap.mmap) -> Any:
    """What ``HostCopies.described`` described, each tensor a view of ``whole``: this rank's parts."""
    if isinstance(described, Described):
        return read_back(pickle.loads(described.pickled), whole)  # noqa: S301 - made above, by a process of this attempt
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
