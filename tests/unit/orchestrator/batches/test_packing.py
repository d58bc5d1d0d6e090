import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.arrays import pack, unpack
from echorl_core.wire.batch import ARRAY_FIELDS, OPTIONAL_ARRAY_FIELDS, MicroBatch, Sample
from echorl_orchestrator.batches.packing import best_fit_decreasing, check_aligned, lay_out, micro_batch
from echorl_testing.orchestrator.scripted_player import A, C, E, sample

SEQ_LEN = 32
ARRAYS = (*ARRAY_FIELDS, *OPTIONAL_ARRAY_FIELDS)
LENGTHS = st.lists(st.integers(1, SEQ_LEN), max_size=60)


def total(one: list[int], lengths: list[int]) -> int:
    return sum(lengths[index] for index in one)


@given(LENGTHS, st.integers(1, 5))
def test_every_sample_stands_once_and_nothing_overflows(lengths: list[int], ranks: int) -> None:
    layout = lay_out(lengths, SEQ_LEN, ranks)
    assert sorted(index for rank in layout for one in rank for index in one) == list(range(len(lengths)))
    assert all(total(one, lengths) <= SEQ_LEN for rank in layout for one in rank)
    assert len(layout) == ranks
    assert len({len(rank) for rank in layout}) == 1
    assert len(layout[0]) >= 1


@given(LENGTHS, st.integers(1, 5))
def test_ranks_differ_by_the_largest_bin_at_the_most(lengths: list[int], ranks: int) -> None:
    layout = lay_out(lengths, SEQ_LEN, ranks)
    tokens = [sum(total(one, lengths) for one in rank) for rank in layout]
    assert max(tokens) - min(tokens) <= max(total(one, lengths) for rank in layout for one in rank)


@given(LENGTHS, st.integers(1, 5))
def test_no_more_micro_batches_than_tight_packing_needs(lengths: list[int], ranks: int) -> None:
    tight = len(best_fit_decreasing(lengths, SEQ_LEN))
    assert len(lay_out(lengths, SEQ_LEN, ranks)[0]) == max(1, -(-tight // ranks))
    assert tight <= 1 or 2 * sum(lengths) > (tight - 1) * SEQ_LEN  # any two bins hold more than one bin could


@given(LENGTHS, st.integers(1, 5))
def test_the_layout_is_a_function_of_its_input(lengths: list[int], ranks: int) -> None:
    assert lay_out(lengths, SEQ_LEN, ranks) == lay_out(lengths, SEQ_LEN, ranks)


def test_by_hand() -> None:
    assert best_fit_decreasing([5, 7, 3, 5], 10) == [[1, 2], [0, 3]]
    # One bin would do, but two ranks share the work.
    assert lay_out([4, 3, 2, 1], 10, 2) == [[[0, 3]], [[1, 2]]]
    # The rank with fewer tokens so far takes the larger bin of a row: 10 + 7 and 9 + 8.
    assert lay_out([10, 9, 8, 7], 10, 2) == [[[0], [3]], [[1], [2]]]
    # One sample for two ranks: the second runs a dummy.
    assert lay_out([4], 10, 2) == [[[0]], [[]]]


def test_a_sample_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 1: found 33 tokens, accepted are up to 32"):
        lay_out([3, 33], SEQ_LEN, 1)


def test_a_micro_batch_is_its_samples_end_to_end() -> None:
    one, other = sample([C, A, E], episode="a"), sample([C, A], episode="b", branch=1, environment="digits")
    packed = micro_batch([one, other])
    assert packed.sample_ids == ["a/0", "b/1"]
    assert packed.environments == ["terminal", "digits"]
    assert packed.lengths.tolist() == [3, 2]
    assert packed.token_ids.tolist() == [0, 1, 2, 0, 1]
    assert packed.rl_weight.tolist() == [0, 1, 0, 0, 1]
    assert packed.ref_logprobs is None
    with_reference = msgspec.structs.replace(one, ref_logprobs=np.array([1, 2, 3], np.float32))
    assert micro_batch([with_reference, other]).ref_logprobs.tolist() == [1, 2, 3, 0, 0]  # type: ignore[union-attr]


def test_tools_of_samples_are_numbered_anew_where_echo_trains_them() -> None:
    first = msgspec.structs.replace(
        sample([C, A, E, E], episode="e1"), tool=np.array([-1, -1, 1, 0], np.int16), tool_names=["ls", "bash"]
    )
    second = msgspec.structs.replace(
        sample([C, A, E], episode="e2"), tool=np.array([-1, -1, 0], np.int16), tool_names=["cat", "never"]
    )
    packed = micro_batch([first, sample([C, A, E], episode="e3"), second])
    assert packed.tool_names == ["bash", "cat", "ls"]
    assert packed.tool is not None
    assert packed.tool.tolist() == [-1, -1, 0, 2, -1, -1, -1, -1, -1, 1]
    assert packed.tool.dtype == np.int16


def test_a_batch_without_echo_on_tools_does_not_tell_them() -> None:
    silent = msgspec.structs.replace(
        sample([C, A, E], alpha=0.0), tool=np.array([-1, -1, 0], np.int16), tool_names=["bash"]
    )
    packed = micro_batch([silent])
    assert (packed.tool, packed.tool_names) == (None, [])


def test_rewards_and_what_echo_counts_travel_with_the_tokens() -> None:
    """Of the first sample ECHO counts a token of alpha 0 as well; of the second only what has a weight."""
    first = msgspec.structs.replace(sample([C, A, E, E], episode="a", alpha=0.0), reward=0.5)
    first = msgspec.structs.replace(first, ce_mask=np.array([False, False, True, False]))
    second = sample([C, E], episode="b")
    packed = micro_batch([first, second])
    assert packed.rewards == [0.5, None]
    assert packed.ce_mask is not None
    assert packed.ce_mask.tolist() == [False, False, True, False, False, True]
    assert not packed.ce_weight[:4].any()
    assert micro_batch([second]).ce_mask is None


def test_a_dummy_has_no_weight_and_a_temperature_to_divide_by() -> None:
    dummy = micro_batch([])
    assert dummy.lengths.tolist() == [4]
    assert not dummy.rl_weight.any()
    assert not dummy.ce_weight.any()
    assert dummy.temperature.tolist() == [1.0] * 4
    fields = ("token_ids", "role", "logprobs", "version_low", "version_high", "rl_weight", "ce_weight", "advantage")
    real = micro_batch([sample([C, A])])
    for name in (*fields, "temperature", "lengths"):
        assert getattr(dummy, name).dtype == getattr(real, name).dtype, name
        assert name == "lengths" or len(getattr(dummy, name)) == 4


@pytest.mark.parametrize("shape", [(3,), (5,), (0,), (4, 1)])
@pytest.mark.parametrize("field", ARRAYS)
def test_a_misaligned_array_is_refused_by_name(field: str, shape: tuple[int, ...]) -> None:
    whole = msgspec.structs.replace(
        sample([C, A, E, A], episode="ep-7"), ref_logprobs=np.zeros(4, np.float32), ce_mask=np.zeros(4, np.bool_)
    )
    check_aligned(whole)
    bent = msgspec.structs.replace(whole, **{field: np.zeros(shape, getattr(whole, field).dtype)})
    message = f"sample ep-7/0: {field} has shape {shape}, accepted is (4,) as of token_ids"
    if field == "token_ids" and len(shape) == 1:  # what the others are held to
        message = f"sample ep-7/0: role has shape (4,), accepted is {shape} as of token_ids"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_aligned(bent)


def test_every_array_of_a_sample_is_held_to_its_length() -> None:
    """But for experts, of which a token has as many as there are (tested below)."""
    assert {*ARRAYS, "experts"} == {
        field.name for field in msgspec.structs.fields(Sample) if "ndarray" in str(field.type).casefold()
    }


def test_experts_of_samples_stand_one_after_the_other() -> None:
    """Two numbers a token; of the second sample none are known, and a column travels as the bytes that it has."""
    first, second = sample([C, C, A, A]), sample([C, C, A])
    told = np.array([3, 1, 0, 2, 1, 0], np.uint8)
    one = msgspec.structs.replace(first, experts=told, routed_tokens=3)
    two = msgspec.structs.replace(first, experts=np.array([300, 7], np.uint16), routed_tokens=1)
    for each in (one, two, second):
        check_aligned(each)
    found = unpack(pack(micro_batch([one, second])), MicroBatch)
    assert found.experts is not None
    assert (found.experts.dtype, found.experts.tolist()) == (np.uint8, told.tolist())
    assert found.routed_tokens == [3, 0]
    wide = unpack(pack(micro_batch([second, two])), MicroBatch)
    assert wide.experts is not None
    assert (wide.experts.dtype, wide.experts.tolist(), wide.routed_tokens) == (np.uint16, [300, 7], [0, 1])
    assert (micro_batch([second]).experts, micro_batch([second]).routed_tokens) == (None, [])


@pytest.mark.parametrize(("count", "tokens"), [(5, 2), (6, 0), (0, 2), (10, 5), (6, -3)])
def test_experts_that_are_not_of_their_tokens_are_refused(count: int, tokens: int) -> None:
    """Of a sample of four tokens."""
    told = msgspec.structs.replace(
        sample([C, C, A, A]), experts=np.zeros(count, np.uint8) if count else None, routed_tokens=tokens
    )
    with pytest.raises(ValueError, match="experts and routed_tokens"):
        check_aligned(told)
