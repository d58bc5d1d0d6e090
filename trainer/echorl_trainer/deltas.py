"""What a version has that the one before it has not: one small file beside the whole version. No torch."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from echorl_core.deltas import Bits, encoded, sampled_density
from echorl_core.wire.weights import TensorChange

_WORTH = 2
"""A delta, and a tensor's part of one, is at most one so many-th of what it stands for; else there is none."""


@dataclass(frozen=True)
class DeltaShare:
    """What changed in a rank's files; offsets are those of its own delta file."""

    size: int
    tensors: dict[str, TensorChange]
    changed: int
    """Elements."""
    elements: int
    """Of all tensors of the rank."""


def delta_of(before: Mapping[str, Bits], after: Mapping[str, Bits], file: int, *, threads: int) -> DeltaShare | None:
    """How ``after`` is made from ``before``, tensors of the same names; None if that takes more than half of its bytes.

    That it would is seen from a thousand elements of each tensor, as a rule. ``file``: a descriptor, whose content is
    replaced.
    """
    pairs = {name: (before[name], one) for name, one in after.items()}
    most = sum(one.nbytes for one in after.values()) // _WORTH
    tensors, changed = dict[str, TensorChange](), 0
    # Written over, as memory that is there is quicker than such that must be made.
    with os.fdopen(os.dup(file), "r+b") as to:
        to.seek(0)
        if sum(_expected(*pair) for pair in pairs.values()) > most:
            to.truncate()
            return None
        with ThreadPoolExecutor(threads) as pool:
            for name, found in zip(pairs, pool.map(_change, pairs.values()), strict=True):
                changed += found.count
                if found.count:
                    sparse = None if found.is_whole else found.count
                    size = sum(part.nbytes for part in found.parts)
                    tensors[name] = TensorChange(offset=to.tell(), size=size, changed=sparse)
                    to.writelines(part.data for part in found.parts)
                if to.tell() > most:
                    pool.shutdown(cancel_futures=True)
                    to.truncate(0)
                    return None
        to.truncate()
        return DeltaShare(to.tell(), tensors, changed, sum(len(one) for one in after.values()))


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
