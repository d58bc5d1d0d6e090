"""What a model's ``load_weights`` copies where, recorded once, so that later versions are copied without it.

    dry run of load_weights -> pieces of published tensors and the parts of parameters that they fill
    stage (while generating): pieces -> one buffer on the device; apply: grouped copies from there into the parameters

It takes the place of loading only where loading is nothing else than such copies, and the recording finds that out:
all of every parameter is filled, from published tensors alone, in their own dtype; and after a real load every part of
a parameter equals its piece, so nothing was repacked. Whatever else is found, loading stays as it was.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNED = 256
"""Bytes at whose multiples pieces begin in the buffer."""
_CONSTANT = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
Load = Callable[[Iterator[tuple[str, Tensor]]], object]


class NotPlainError(Exception):
    """Loading is more than copies of published tensors; the text says what was found."""


@dataclass(frozen=True)
class Piece:
    """A part of a published tensor, and the part of a parameter that it fills; of one shape and dtype."""

    source: str
    offset: int
    """Elements from the source's first."""
    stride: tuple[int, ...]
    target: Tensor

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The part of the published tensor, as a view."""
        whole = tensors[self.source]
        return whole.as_strided(self.target.shape, self.stride, whole.storage_offset() + self.offset)


class _Sources:
    """Published tensors by the addresses of their bytes. Two names of one address are one tensor."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        named = {tensor.data_ptr(): name for name, tensor in reversed(list(tensors.items())) if tensor.numel()}
        self._starts = sorted(named)
        self._names = [named[start] for start in self._starts]

    @property
    def names(self) -> set[str]:
        return set(self._names)

    def find(self, part: Tensor) -> tuple[str, int]:
        """Name of the tensor that ``part`` is a view of, and how many elements behind its first it begins."""
        at = bisect_right(self._starts, part.data_ptr()) - 1
        if at >= 0:
            whole, behind = self._tensors[self._names[at]], part.data_ptr() - self._starts[at]
            if behind < whole.nbytes and part.dtype == whole.dtype and part.device == whole.device:
                return self._names[at], behind // whole.element_size()
        raise NotPlainError("a value that is loaded is not a part of a published tensor")


class _DryRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what would be written into parameters, and writes nothing."""

    def __init__(self, parameters: Mapping[str, Tensor], sources: _Sources) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stores = {_store(one): name for name, one in parameters.items() if one.numel()}
        self._sources = sources
        self.pieces: list[Piece] = []
        self.constant: list[Tensor] = []
        """Parts of parameters that are filled with a constant, which they hold already."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = [
            given
            for argument, given in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Tensor)
        ]
        hit = [one for one in written if one.numel() and _store(one) in self._stores]
        if not hit:
            return func(*args, **(kwargs or {}))
        name = self._stores[_store(hit[0])]
        if func is torch.ops.aten.copy_.default:
            self._note(name, args[0], args[1])
        elif func in _CONSTANT:
            self.constant.append(args[0].detach())
        else:
            raise NotPlainError(f"{name}: loading does {func}")
        return args[0]

    def _note(self, name: str, target: Tensor, part: Tensor) -> None:
        if part.dtype != target.dtype or part.shape != target.shape:
            found, wanted = (f"{one.dtype} {list(one.shape)}" for one in (part, target))
            raise NotPlainError(f"{name}: {found} is loaded into {wanted}")
        source, offset = self._sources.find(part)
        self.pieces.append(Piece(source, offset, part.stride(), target.detach()))


def record(parameters: Mapping[str, Tensor], load: Load, tensors: Mapping[str, Tensor]) -> list[Piece]:
    """What ``load`` copies of ``tensors`` into ``parameters``, which stay as they are.

    Raises:
        NotPlainError: it does something else as well, or leaves something out.
    """
    sources = _Sources(tensors)
    before = {name: one.data for name, one in parameters.items()}
    run = _DryRun(parameters, sources)
    try:
        with torch.no_grad(), run:
            load(iter(tensors.items()))
    except NotPlainError:
        raise
    except Exception as error:
        raise NotPlainError(f"a dry run of loading ends with {type(error).__name__}: {error}") from error
    finally:
        moved = [name for name, one in parameters.items() if one.data_ptr() != before[name].data_ptr()]
        for name in moved:
            parameters[name].data = before[name]
    if moved:
        raise NotPlainError(f"{moved[0]}: loading puts another tensor in its place")
    if unread := sources.names - {piece.source for piece in run.pieces}:
        raise NotPlainError(f"{min(unread)}: is not loaded")
    _check_covered(parameters, [piece.target for piece in run.pieces], run.constant)
    return run.pieces


def check_equal(pieces: Sequence[Piece], tensors: Mapping[str, Tensor]) -> None:
    """After a real load: every part of a parameter holds what was published.

    Raises:
        NotPlainError: one does not.
    """
    for piece in pieces:
        if not torch.equal(piece.target, piece.of(tensors).to(piece.target.device)):
            raise NotPlainError(f"{piece.source}: is held otherwise than it was published")


def _check_covered(parameters: Mapping[str, Tensor], copied: Sequence[Tensor], constant: Sequence[Tensor]) -> None:
    """All of every parameter is filled, and none of it by two copies, whose order grouped copies would not keep."""
    for name, parameter in parameters.items():
        if not parameter.numel():
            raise NotPlainError(f"{name}: is empty")
        size = parameter.untyped_storage().nbytes() // parameter.element_size()
        seen = torch.zeros(size, dtype=torch.bool, device=parameter.device)
        for part in (one for one in copied if _store(one) == _store(parameter)):
            there = seen.as_strided(part.shape, part.stride(), part.storage_offset())
            if bool(there.any()):
                raise NotPlainError(f"{name}: is filled twice")
            there.fill_(True)  # noqa: FBT003
        for part in (one for one in constant if _store(one) == _store(parameter)):
            seen.as_strided(part.shape, part.stride(), part.storage_offset()).fill_(True)  # noqa: FBT003
        if not bool(seen.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset()).all()):
            raise NotPlainError(f"{name}: is not filled as a whole")


def _store(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Copies:
    """Recorded pieces, and a buffer on their device that has room for all of them."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Raises torch.OutOfMemoryError where the device has no room."""
        self._pieces = pieces
        self._of: dict[str, list[int]] = {}
        for number, piece in enumerate(pieces):
            self._of.setdefault(piece.source, []).append(number)
        sizes = [-(-piece.target.nbytes // _ALIGNED) * _ALIGNED for piece in pieces]
        self._device = pieces[0].target.device
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        self._staged = [
            room[: piece.target.nbytes].view(piece.target.dtype).view(piece.target.shape)
            for room, piece in zip(torch.split(buffer, sizes), pieces, strict=True)
        ]
        self.size_bytes = buffer.nbytes
        self._side: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Bring a version's pieces of some tensors into the buffer, beside what else the device does.

        Returns when it is done; threads may do it side by side.
        """
        if self._side is None:
            self._fill(tensors)
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            self._fill(tensors)
            done = self._side.record_event()
        done.synchronize()

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name in tensors:
            for number in self._of.get(name, ()):
                self._staged[number].copy_(self._pieces[number].of(tensors))

    @torch.no_grad()
    def replay(self) -> None:
        """Fill the parameters from the buffer; on the current stream, after all that was begun before."""
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for piece, room in zip(self._pieces, self._staged, strict=True):
            targets, rooms = by_dtype.setdefault(room.dtype, ([], []))
            targets.append(piece.target)
            rooms.append(room)
        for targets, rooms in by_dtype.values():
            torch._foreach_copy_(targets, rooms)
