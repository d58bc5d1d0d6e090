"""What changed between two versions of a tensor, element by element, and how few bytes say it.

    gaps     a byte for every changed element: how many unchanged ones lie before it, up to 254;
             255 passes as many, and no changed one follows
    values   the changed elements as they are now, in order

Elements are compared by their bits: a NaN equals itself, and -0.0 is not 0.0. Vectors are of unsigned integers of the
elements' width (``bits``), so a dtype does not matter.
"""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger]

WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Bytes of an element, by safetensors' name of its dtype."""
_PASSED = 255
_BLOCK, _COMPARED = 1 << 19, 1 << 22
"""Changed elements, or gaps, that are worked on at once, and elements that are compared at once: what bounds the memory
that it takes. Each call of numpy takes Python's lock from whoever computes beside it, so they are few."""
_SAMPLED = 1024


class MalformedDelta(ValueError):
    """Not what ``encoded`` makes, or not of such a tensor."""


def bits(data: memoryview | NDArray[np.uint8], width: int) -> Bits:
    """The elements in ``data``, of ``width`` bytes each, as little-endian unsigned integers; a view."""
    return np.frombuffer(data, dtype=f"<u{width}")


def sampled_density(before: Bits, after: Bits) -> float:
    """About which share of the elements changed: that of a thousand at equal distances; 0 where there are none."""
    step = max(1, len(after) // _SAMPLED)
    differ = before[::step] != after[::step]
    return float(differ.mean()) if len(differ) else 0.0


def encoded(before: Bits, after: Bits, *, most_bytes: int) -> tuple[list[Bits], int] | None:
    """How ``after`` is made from ``before``; None if that takes more than ``most_bytes``.

    Returns:
        Vectors whose bytes are to follow each other, gaps before values, and how many elements changed.
    """
    gaps: list[Bits] = []
    values: list[Bits] = []
    size = count = 0
    last = -1
    for begin in range(0, len(after), _COMPARED):
        new = after[begin : begin + _COMPARED]
        changed = np.flatnonzero(before[begin : begin + _COMPARED] != new)
        for first in range(0, len(changed), _BLOCK):
            at = changed[first : first + _BLOCK]
            passed, rest = np.divmod(np.diff(at + begin, prepend=last) - 1, _PASSED)
            size += int(passed.sum()) + len(at) * (1 + after.itemsize)
            if size > most_bytes:
                return None
            stream = np.full(int(passed.sum()) + len(at), _PASSED, np.uint8)
            stream[np.cumsum(passed) + np.arange(len(at))] = rest
            gaps.append(stream)
            values.append(new[at])
            count += len(at)
            last = begin + int(at[-1])
    return [*gaps, *values], count


def apply(data: NDArray[np.uint8], changed: int, target: Bits) -> None:
    """Put ``changed`` elements, as ``encoded`` wrote them, into ``target``.

    Raises:
        MalformedDelta: ``data`` is too short or too long for them, or names elements that ``target`` does not have;
            some of it may have been put there before that was found.
    """
    values_at = len(data) - changed * target.itemsize
    if changed < 0 or values_at < changed:
        raise MalformedDelta(f"{len(data)} bytes cannot hold {changed} elements of {target.itemsize} bytes and gaps")
    gaps, values = data[:values_at], bits(data[values_at:], target.itemsize)
    place = done = 0
    for begin in range(0, len(gaps), _BLOCK):
        part = gaps[begin : begin + _BLOCK]
        here = part != _PASSED
        ends = place + np.cumsum(part + here, dtype=np.int64)
        at = ends[here] - 1
        place = int(ends[-1])
        if place > len(target):
            raise MalformedDelta(f"gaps reach element {place - 1}, the tensor has {len(target)}")
        if done + len(at) > changed:
            raise MalformedDelta(f"gaps name more than the {changed} elements that there are values of")
        target[at] = values[done : done + len(at)]
        done += len(at)
    if done != changed:
        raise MalformedDelta(f"gaps name {done} elements, there are values of {changed}")
