"""From character spans of a message to its tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def overlapping(
    body: Sequence[int], own: Sequence[int], offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> NDArray[np.bool_]:
    """Which of the ``body`` tokens overlap one of the character ``spans``.

    Args:
        body: ids of the message's body as rendered, length N.
        own: ids of the same text encoded by itself.
        offsets: character span of each of ``own``.
        spans: character spans of the text.

    Returns:
        Mask of length N. Merges at the edges of a body can make ``body`` differ from ``own``; tokens between
        the common beginning and end then count as overlapping, so that a warning is never taken for content.
    """
    head = _common(body, own)
    tail = _common(body[head:][::-1], own[head:][::-1])
    mask = np.ones(len(body), np.bool_)
    for position in [*range(head), *range(len(body) - tail, len(body))]:
        low, high = offsets[position if position < head else position - len(body)]
        mask[position] = any(low < end and start < high for start, end in spans)
    return mask
