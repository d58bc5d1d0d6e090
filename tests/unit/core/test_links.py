"""Which way weights go where the manifest leaves it open, and in what slices, on numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.links import chosen_transfer
from echorl_core.wire.broadcast import slices


@pytest.mark.parametrize(
    ("size", "trainer", "engines", "mode", "why"),
    [
        # 0.05 s + 1.2e9 / 10e9 is 0.17 s.
        (1_200_000_000, True, True, "nccl", "1.200 s over HTTP at 1 GB/s, 0.170 s by broadcast at 10 GB/s; both rates"),
        (40_000_000, True, True, "http", "0.040 s over HTTP at 1 GB/s, 0.054 s by broadcast"),
        (1_200_000_000, False, True, "http", "the trainer has no GPU"),
        (1_200_000_000, True, False, "http", "the engines have no GPU"),
    ],
)
def test_the_faster_way_is_taken_and_says_why(size: int, trainer: bool, engines: bool, mode: str, why: str) -> None:
    choice = chosen_transfer(size, trainer_on_gpu=trainer, engines_on_gpus=engines)
    assert choice.mode == mode
    assert why in choice.why


def test_slices_of_ten_bytes_by_four() -> None:
    assert slices(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert slices(0, 4) == []


@given(st.integers(0, 500), st.integers(1, 60))
def test_slices_hold_every_byte_once_and_in_order(size: int, largest: int) -> None:
    found = slices(size, largest)
    assert [one for first, after in found for one in range(first, after)] == list(range(size))
    assert all(0 < after - first <= largest for first, after in found)
