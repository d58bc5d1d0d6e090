"""A version's files are dealt out to ranks: each copies, hashes and serves its own, and the first tells of all.

    every rank   own files -> finite? -> digests, delta -> readable at this rank -> Share
    group        all have the shares of all; the first writes the manifest, and the others learn that it is visible

Ranks of the first replica take part: each of them sees the whole of every tensor anyway when it is gathered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from msgspec.structs import replace

from echorl_core.wire.weights import DeltaPart, PolicyId, TensorChange, TensorInfo, WeightDelta
from echorl_trainer.deltas import DeltaShare

T = TypeVar("T")

FILES_PER_RANK = 4
"""At least so many, about, so that ranks have equal bytes; a tensor is never divided."""


def dealt(sizes: Sequence[int], ranks: int) -> list[int]:
    """Which rank has each file: the largest first, each to the rank with the fewest bytes, and of these the lowest.

    So no rank has more than the mean and one file.
    """
    held = [0] * ranks
    found = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        rank = held.index(min(held))
        found[number] = rank
        held[rank] += sizes[number]
    return found


def file_bytes(total: int, ranks: int, most: int) -> int:
    """How large files are to be, so that ``ranks`` can share ``total`` bytes; one rank's are of ``most`` bytes."""
    return most if ranks == 1 else max(1, min(most, total // (FILES_PER_RANK * ranks)))


@dataclass(frozen=True)
class Share:
    """What a rank tells of its part of a version."""

    folder: str | None = None
    """Where it is served; None: beside the manifest."""
    files: tuple[str, ...] = ()
    tensors: dict[str, TensorInfo] | None = None
    delta: DeltaShare | None = None
    """None: the rank's files would be no smaller for it, or there is no version before."""
    problem: str | None = None
    """Why the version must not be published; nothing else is told then."""


def joined(base: PolicyId, shares: Sequence[Share]) -> WeightDelta | None:
    """One delta of all shares, whose files follow each other in it; None: some rank has none."""
    tensors: dict[str, TensorChange] = {}
    parts, size = [], 0
    for share in shares:
        if (own := share.delta) is None:
            return None
        tensors |= {name: replace(one, offset=one.offset + size) for name, one in own.tensors.items()}
        parts.append(DeltaPart(folder=share.folder, size=own.size))
        size += own.size
    return WeightDelta(base=base, size=size, tensors=tensors, parts=parts if len(shares) > 1 else [])


def changed_ratio(deltas: Iterable[DeltaShare]) -> float:
    """Share of all elements that changed."""
    found = list(deltas)
    return sum(one.changed for one in found) / max(1, sum(one.elements for one in found))


class Sharers:
    """The ranks that have a version among them. Its calls are collective, and one thread of a rank makes them."""

    def __init__(self, index: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        """Without arguments: one rank alone, whose calls wait for nobody."""
        self.index, self.size, self._group = index, size, group

    @property
    def is_first(self) -> bool:
        """Whether this rank writes manifests, and completes folders."""
        return self.index == 0

    def exchanged(self, own: T) -> list[T]:
        """What all ranks bring, in their order.

        Raises:
            RuntimeError: a rank is gone, or did not come before the deadline.
        """
        if self._group is None:
            return [own]
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, own, group=self._group)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RuntimeError(f"a rank that serves a part of the weights is gone, or late: {reason}") from error
        return found


def sharers_of(rank: int, size: int, *, timeout_s: float) -> Sharers | None:
    """Ranks 0 to ``size - 1``, as rank ``rank`` sees them: None if it is none of them; collective over all ranks.

    ``timeout_s`` bounds each exchange.
    """
    group = None
    if size > 1:
        # In threads beside the loop, so they need a group of their own.
        group = dist.new_group(list(range(size)), backend="gloo", timeout=timedelta(seconds=timeout_s))
    return Sharers(rank, size, group) if rank < size else None
