"""What a version's snapshot has that the snapshot before it has not: one small file beside the whole version."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from echorl_core.deltas import Bits, encoded, sampled_density
from echorl_core.wire.weights import TensorChange
from echorl_trainer.host_files import MemoryFile
from echorl_trainer.sharing import DeltaShare
from echorl_trainer.snapshots import Snapshot

_WORTH = 2
"""A delta, and a tensor's part of one, is at most one so many-th of what it stands for; else there is none."""


@dataclass(frozen=True)
class Delta:
    """How a version is made from the one before it."""

    described: DeltaShare
    file: MemoryFile


def delta_of(base: Snapshot, new: Snapshot, *, threads: int) -> Delta | None:
    """How ``new`` is made from ``base``; None if that takes more than half of its bytes.

    That it would is seen from a thousand elements of each tensor, as a rule. The file is in this process's memory.
    """
    pairs = {
        name: (before, after)
        for one, other in zip(base.files, new.files, strict=True)
        for (name, before), after in zip(one.bits().items(), other.bits().values(), strict=True)
    }
    most = sum(after.nbytes for _, after in pairs.values()) // _WORTH
    if sum(_expected(*pair) for pair in pairs.values()) > most:
        return None
    file, tensors, changed = MemoryFile(), dict[str, TensorChange](), 0
    with file.path.open("wb") as to, ThreadPoolExecutor(threads) as pool:
        for name, found in zip(pairs, pool.map(_change, pairs.values()), strict=True):
            changed += found.count
            if found.count:
                sparse = None if found.is_whole else found.count
                size = sum(part.nbytes for part in found.parts)
                tensors[name] = TensorChange(offset=to.tell(), size=size, changed=sparse)
                to.writelines(part.data for part in found.parts)
            if to.tell() > most:
                pool.shutdown(cancel_futures=True)
                return None
        size = to.tell()
    elements = sum(len(after) for _, after in pairs.values())
    return Delta(DeltaShare(size, tensors, changed, elements), file)


def _expected(before: Bits, after: Bits) -> float:
    """Bytes, about."""
    return min(after.nbytes, sampled_density(before, after) * len(after) * (1 + after.itemsize))


@dataclass(frozen=True)
class _Change:
    parts: Sequence[Bits]
    """Whose bytes follow each other. They are not copied together, as that takes long and keeps Python's lock."""
    count: int
    """Elements."""
    is_whole: bool
    """``parts`` are the tensor's bytes."""


def _change(pair: tuple[Bits, Bits]) -> _Change:
    before, after = pair
    if (sparse := encoded(before, after, most_bytes=after.nbytes // _WORTH)) is not None:
        return _Change(*sparse, is_whole=False)
    return _Change((after,), int(np.count_nonzero(before != after)), is_whole=True)
