"""8-bit codes against a slow float64 reference, and what a step rests on: zeros, small squares, ends of rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_trainer.eight_bit import BLOCK, code_book, decode, encode


@pytest.mark.parametrize("signed", [True, False])
def test_the_book_is_256_values_finer_where_they_are_larger(signed):
    book = code_book(signed=signed).double()
    assert len(book) == 256
    assert (book.diff() > 0).all()
    assert 0.0 in book
    assert book[-1] == 1.0
    top = ((book > 0.1) & (book < 1.0)).sum()
    assert top == (64 if signed else 128)
    # The lowest of the decade: the middle of its first step.
    assert book[book > 0.1][0] == pytest.approx(0.1 + 0.9 * 0.5 / int(top))
    assert book[book > 0][0] == pytest.approx(1e-6 * (0.55 if signed else 0.325))


def nearest(values: np.ndarray, *, signed: bool) -> np.ndarray:
    """Each value through its block's scale to the book's nearest value and back, one at a time, in float64."""
    book = code_book(signed=signed).double().numpy()
    found = np.zeros(values.shape)
    for row, line in enumerate(values.astype(np.float64)):
        for begin in range(0, len(line), BLOCK):
            block = line[begin : begin + BLOCK]
            scale = np.abs(block).max()
            for place, value in enumerate(block):
                at = np.argmin(np.abs(book * scale - value))
                if not signed and value > 0:
                    at = max(at, 1)
                found[row, begin + place] = book[at] * scale
    return found


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31), columns=st.sampled_from([1, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 5]), signed=st.booleans()
)
def test_every_value_becomes_the_nearest_of_its_block(seed, columns, signed):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(3, columns)) * 10.0 ** generator.uniform(-9, 3, size=(3, columns))
    values = (values if signed else np.abs(values)).astype(np.float32)
    codes, scales = encode(torch.from_numpy(values), signed=signed)
    assert codes.dtype == torch.uint8
    assert codes.shape == values.shape
    assert scales.shape == (3, -(-columns // BLOCK))
    found = decode(codes, scales, signed=signed).numpy()
    wanted = nearest(values, signed=signed)
    # Float32 rounds what is found, and where two are about equally near, either is right.
    error, least = (np.abs(one - values.astype(np.float64)) for one in (found, wanted))
    assert (error <= least + 1e-6 * np.abs(wanted)).all()


@pytest.mark.parametrize("signed", [True, False])
def test_zeros_stay_zeros_and_largest_values_stay_themselves(signed):
    values = torch.zeros(2, 3)
    assert torch.equal(decode(*encode(values, signed=signed), signed=signed), values)
    values[1] = torch.tensor([0.0, 3e-20, 5e-21])
    found = decode(*encode(values, signed=signed), signed=signed)
    assert found[1, 0] == 0
    assert found[1, 1] == values[1, 1]


def test_a_square_above_zero_never_becomes_zero():
    """Its root divides the update: 1e-12 of its block's largest would be none of the book's values but 0."""
    values = torch.tensor([[1.0, 1e-12, 0.0]])
    found = decode(*encode(values, signed=False), signed=False)
    assert found[0, 1] > 0
    assert found[0, 2] == 0
    assert decode(*encode(values, signed=True), signed=True)[0, 1] == 0
