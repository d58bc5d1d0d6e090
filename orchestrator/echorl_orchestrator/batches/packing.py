"""Samples to micro-batches: how token sequences are laid out over ranks. Pure functions.

    lay_out(lengths)   which samples go into which micro-batch of which rank (numbers only)
    micro_batch(...)   the arrays of one micro-batch

Ranks meet in every micro-batch (collectives), so row ``j`` of all ranks should cost about the same: bins are spread
evenly where they fit, sorted by size, cut into rows of one bin per rank, and the largest bin of a row goes to the rank
that has the fewest tokens so far.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from echorl_core.wire.batch import ARRAY_FIELDS, OPTIONAL_ARRAY_FIELDS, MicroBatch, Sample, TokenRole

DUMMY_TOKENS = 4
DUMMY_ID = "dummy/0"

Bin = list[int]
"""Indices of the samples of one micro-batch."""


def lay_out(lengths: Sequence[int], seq_len: int, num_ranks: int) -> list[list[Bin]]:
    """Micro-batches of every rank: ``result[rank][micro_batch]`` holds sample indices; an empty bin is a dummy.

    Every index stands in exactly one bin, no bin holds more than ``seq_len`` tokens, and every rank has the same number
    of bins (at least one). Total tokens of two ranks differ by at most the largest bin.

    Raises:
        ValueError: a sample is longer than ``seq_len``.
    """
    for index, length in enumerate(lengths):
        if length > seq_len:
            raise ValueError(f"sample {index}: found {length} tokens, accepted are up to {seq_len}")
    tight = best_fit_decreasing(lengths, seq_len)
    count = max(1, -(-len(tight) // num_ranks)) * num_ranks
    bins = spread(lengths, seq_len, count) or tight + [[] for _ in range(count - len(tight))]
    return _deal([sorted(indices) for indices in bins], lengths, num_ranks)


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[Bin]:
    """Few bins: each sample, longest first, goes where it leaves the least room."""
    bins: list[Bin] = []
    room: list[tuple[int, int]] = []
    for index in _longest_first(lengths):
        place = bisect_left(room, (lengths[index], -1))
        if place == len(room):
            left, number = capacity, len(bins)
            bins.append([])
        else:
            left, number = room.pop(place)
        bins[number].append(index)
        insort(room, (left - lengths[index], number))
    return bins


def spread(lengths: Sequence[int], capacity: int, count: int) -> list[Bin] | None:
    """``count`` bins of about equal size: each sample, longest first, into the emptiest; None if one overflows."""
    bins: list[Bin] = [[] for _ in range(count)]
    filled = [(0, number) for number in range(count)]
    for index in _longest_first(lengths):
        tokens, number = filled[0]
        if tokens + lengths[index] > capacity:
            return None
        bins[number].append(index)
        heapq.heapreplace(filled, (tokens + lengths[index], number))
    return bins


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))


def _deal(bins: list[Bin], lengths: Sequence[int], num_ranks: int) -> list[list[Bin]]:
    size = {id(indices): sum(lengths[index] for index in indices) for indices in bins}
    ordered = sorted(bins, key=lambda indices: (-size[id(indices)], indices))
    totals = [0] * num_ranks
    ranks: list[list[Bin]] = [[] for _ in range(num_ranks)]
    for start in range(0, len(ordered), num_ranks):
        row = ordered[start : start + num_ranks]
        for rank, indices in zip(sorted(range(num_ranks), key=lambda rank: (totals[rank], rank)), row, strict=True):
            ranks[rank].append(indices)
            totals[rank] += size[id(indices)]
    return ranks


def check_aligned(sample: Sample) -> None:
    """Refuse a sample whose per-token arrays disagree in length.

    Raises:
        ValueError: names the sample and the field.
    """
    for name in (*ARRAY_FIELDS, *OPTIONAL_ARRAY_FIELDS):
        array = getattr(sample, name)
        if array is not None and array.shape != (sample.num_tokens,):
            raise ValueError(
                f"sample {sample.sample_id}: {name} has shape {array.shape}, accepted is ({sample.num_tokens},)"
                " as of token_ids"
            )
    experts, routed = sample.experts, sample.routed_tokens
    width, rest = divmod(0 if experts is None else experts.size, routed or 1)
    if not 0 <= routed <= sample.num_tokens or rest or bool(width) != bool(routed):
        raise ValueError(f"sample {sample.sample_id}: experts and routed_tokens {routed} do not belong together")


def micro_batch(samples: Sequence[Sample]) -> MicroBatch:
    """Concatenate samples; none gives a dummy of a few tokens without any weight."""
    if not samples:
        return _dummy()

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(sample, name) for sample in samples])

    reference = None
    if any(sample.ref_logprobs is not None for sample in samples):
        reference = np.concatenate([_reference(sample) for sample in samples])
    tool, tool_names = _tools(samples)
    return MicroBatch(
        sample_ids=[sample.sample_id for sample in samples],
        environments=[sample.environment for sample in samples],
        lengths=np.array([sample.num_tokens for sample in samples], dtype=np.int32),
        token_ids=joined("token_ids"),
        role=joined("role"),
        logprobs=joined("logprobs"),
        version_low=joined("version_low"),
        version_high=joined("version_high"),
        rl_weight=joined("rl_weight"),
        ce_weight=joined("ce_weight"),
        advantage=joined("advantage"),
        temperature=joined("temperature"),
        ref_logprobs=reference,
        tool=tool,
        tool_names=tool_names,
        rewards=[sample.reward for sample in samples],
        ce_mask=_ce_mask(samples),
        experts=_experts(samples),
        routed_tokens=[sample.routed_tokens for sample in samples] if any(s.routed_tokens for s in samples) else [],
    )


def _experts(samples: Sequence[Sample]) -> NDArray[np.unsignedinteger] | None:
    told = [sample.experts for sample in samples if sample.experts is not None]
    return np.concatenate(told) if told else None


def _ce_mask(samples: Sequence[Sample]) -> NDArray[np.bool_] | None:
    """What ECHO counts; nothing where that is what has a weight."""
    if all(np.array_equal(sample.ce_selected, sample.ce_weight != 0) for sample in samples):
        return None
    return np.concatenate([sample.ce_selected for sample in samples])


def _tools(samples: Sequence[Sample]) -> tuple[NDArray[np.int16] | None, list[str]]:
    """Tool of each token by one list of names; nothing where ECHO trains no tool's output."""
    if not any(((sample.ce_weight != 0) & (sample.tool >= 0)).any() for sample in samples):
        return None, []
    names = sorted({sample.tool_names[index] for sample in samples for index in set(sample.tool.tolist()) - {-1}})
    numbers = {name: number for number, name in enumerate(names)}

    def renumbered(sample: Sample) -> NDArray[np.int16]:
        # The last one is what index -1 takes.
        table = [*(numbers.get(name, -1) for name in sample.tool_names), -1]
        return np.array(table, np.int16)[sample.tool]

    return np.concatenate([renumbered(sample) for sample in samples]), names


def _reference(sample: Sample) -> np.ndarray:
    return np.zeros(sample.num_tokens, np.float32) if sample.ref_logprobs is None else sample.ref_logprobs


def _dummy() -> MicroBatch:
    nothing = np.zeros(DUMMY_TOKENS, np.float32)
    no_version = np.full(DUMMY_TOKENS, -1, np.int32)
    return MicroBatch(
        sample_ids=[DUMMY_ID],
        environments=[""],
        lengths=np.array([DUMMY_TOKENS], np.int32),
        token_ids=np.zeros(DUMMY_TOKENS, np.int32),
        role=np.full(DUMMY_TOKENS, TokenRole.CONTEXT, np.uint8),
        logprobs=nothing,
        version_low=no_version,
        version_high=no_version,
        rl_weight=nothing,
        ce_weight=nothing,
        advantage=nothing,
        temperature=np.ones(DUMMY_TOKENS, np.float32),
    )
