"""What changed between two vectors: worked out by hand, any two of any width, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from echorl_core.deltas import MalformedDelta, apply, bits, encoded, sampled_density

WIDTHS = (1, 2, 4, 8)
ANY = 1 << 40


def written(before, after, most_bytes=ANY):
    found = encoded(before, after, most_bytes=most_bytes)
    return None if found is None else (b"".join(part.tobytes() for part in found[0]), found[1])


def applied(data, count, before):
    target = before.copy()
    apply(np.frombuffer(data, np.uint8), count, target)
    return target


def test_a_tiny_tensor_by_hand():
    before = np.full(300, 0x3F80, "<u2")  # 1.0 in bfloat16
    after = before.copy()
    after[1] = 0x3F81  # the next larger number
    after[3] = 0x8000  # -0.0
    after[259] = 0x7FC0  # NaN
    # One unchanged before the first, one before the second, 255 before the third: 255 are passed, and none is left.
    assert written(before, after, 10) == (bytes.fromhex("01 01 ff 00  81 3f 00 80 c0 7f"), 3)
    assert written(before, after, 9) is None


def test_a_gap_beyond_two_bytes_by_hand():
    before = np.zeros(200_000, "<u4")
    after = before.copy()
    after[-1] = 5
    # 199,999 = 784 x 255 + 79
    assert written(before, after) == (b"\xff" * 784 + bytes([79, 5, 0, 0, 0]), 1)
    assert np.array_equal(applied(*written(before, after), before), after)


def test_elements_are_compared_by_their_bits():
    before = np.array([0.0, np.nan, 1.0], np.float32)
    after = np.array([-0.0, np.nan, 1.0], np.float32)
    data, count = written(*(bits(one.view(np.uint8), 4) for one in (before, after)))
    assert (data, count) == (bytes([0, 0, 0, 0, 0x80]), 1)


@st.composite
def pairs(draw):
    width = draw(st.sampled_from(WIDTHS))
    dtype, size = np.dtype(f"<u{width}"), draw(st.integers(0, 700))
    before = draw(arrays.arrays(dtype, size))
    kind = draw(st.sampled_from(["any", "few", "all", "none"]))
    if kind == "any":
        return before, draw(arrays.arrays(dtype, size))
    places = draw(st.sets(st.integers(0, max(0, size - 1)), max_size=5)) if kind == "few" and size else set()
    after = before.copy()
    after[list(places) if kind == "few" else slice(None if kind == "all" else 0, None if kind == "all" else 0)] ^= 1
    return before, after


@given(pairs())
def test_any_two_vectors_round_trip(pair):
    before, after = pair
    data, count = written(before, after)
    assert count == int((before != after).sum())
    assert np.array_equal(applied(data, count, before), after)


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=6, unique=True), st.sampled_from(WIDTHS))
def test_any_gaps_round_trip(places, width):
    before = np.zeros(300_001, f"<u{width}")
    after = before.copy()
    after[places] = 200
    data, count = written(before, after)
    assert len(data) <= count * (1 + width) + len(before) // 255
    assert np.array_equal(applied(data, count, before), after)


def test_blocks_are_one_vector(monkeypatch):
    rng = np.random.default_rng(0)
    before = rng.integers(0, 4, 10_000).astype("<u2")
    after = rng.integers(0, 4, 10_000).astype("<u2")
    whole = written(before, after)
    for block, compared in ((97, 1 << 22), (1 << 19, 101), (89, 307)):
        monkeypatch.setattr("echorl_core.deltas._BLOCK", block)
        monkeypatch.setattr("echorl_core.deltas._COMPARED", compared)
        assert written(before, after) == whole
    assert np.array_equal(applied(*whole, before), after)


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"\x00\x01", 1, "2 bytes cannot hold 1 elements of 2 bytes and gaps"),
        (b"", 1, "0 bytes cannot hold"),
        (b"\x00\x01\x02", -1, "cannot hold -1 elements"),
        (b"\x0a\x01\x02", 1, "gaps reach element 10, the tensor has 10"),
        (b"\xff\x00\x01\x02", 1, "gaps reach element 255"),
        (b"\x00\x00\x01\x02", 1, "gaps name more than the 1 elements"),
        (b"\xff\x01\x02", 1, "gaps reach element 254"),
        (b"\x00\x01\x02", 0, "gaps name more than the 0 elements"),
    ],
)
def test_what_is_no_delta_of_ten_elements_is_refused(data, count, message):
    with pytest.raises(MalformedDelta, match=message):
        apply(np.frombuffer(data, np.uint8), count, np.zeros(10, "<u2"))


@given(st.binary(max_size=60), st.integers(-1, 20), st.sampled_from(WIDTHS))
def test_any_bytes_are_put_in_or_refused(data, count, width):
    target = np.zeros(40, f"<u{width}")
    try:
        apply(np.frombuffer(data, np.uint8), count, target)
    except MalformedDelta:
        return
    assert int((target != 0).sum()) <= count


def test_the_density_is_that_of_a_sample():
    before = np.zeros(100_000, "<u2")
    after = before.copy()
    after[: len(after) // 4] = 1
    assert sampled_density(before, after) == pytest.approx(0.25, abs=0.01)
    assert sampled_density(before[:0], after[:0]) == 0
