import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.filters.text_filters import is_gibberish, is_repetition
from echorl_testing.orchestrator.scripted_player import A, C, E, sample

VOCAB = 151_936
CHANCE = -math.log(VOCAB)  # -11.93 nats


def drawn(token: int, logprob: float, role: TokenRole = A) -> Sample:
    made = sample([C, A, role, A], tokens=[1, 2, token, 3])
    logprobs = made.logprobs.copy()
    logprobs[2] = logprob
    return msgspec.structs.replace(made, logprobs=logprobs)


@pytest.mark.parametrize(
    ("token", "logprob", "role", "expected"),
    [
        (100_001, CHANCE - 2.1, A, True),
        (100_001, CHANCE - 1.9, A, False),
        (100_000, CHANCE - 9.0, A, False),
        (150_000, -0.5, A, False),
        (150_000, CHANCE - 9.0, E, False),
    ],
)
def test_gibberish_is_a_rare_token_less_likely_than_chance(
    token: int, logprob: float, role: TokenRole, *, expected: bool
) -> None:
    assert is_gibberish(drawn(token, logprob, role), VOCAB) is expected


def test_a_smaller_vocabulary_makes_chance_more_likely() -> None:
    one = drawn(100_001, CHANCE - 1.9)
    assert is_gibberish(one, VOCAB // 2)  # log 2 is 0.69


def turns(logprobs: list[float], turn: list[int]) -> Sample:
    """Sampled tokens after one of context; turn -1 is no action."""
    made = sample([C, *(A if number >= 0 else E for number in turn)])
    return msgspec.structs.replace(
        made, logprobs=np.array([0.0, *logprobs], np.float32), turn=np.array([-1, *turn], np.int32)
    )


SURE, UNSURE = math.log(0.995), math.log(0.985)


@pytest.mark.parametrize(
    ("logprobs", "turn", "expected"),
    [
        ([SURE] * 4, [0] * 4, True),
        ([SURE] * 3, [0] * 3, False),
        ([SURE, SURE, UNSURE, SURE, SURE, SURE], [0] * 6, False),
        ([UNSURE, SURE, SURE, SURE, SURE, UNSURE], [0] * 6, True),
        ([SURE] * 6, [0, 0, 0, 1, 1, 1], False),
        ([SURE, UNSURE, SURE, SURE, SURE, SURE], [0, 0, 1, 1, 1, 1], True),
        ([SURE, SURE, SURE, 0.0, SURE, SURE], [0, 0, 0, -1, 1, 1], False),
    ],
)
def test_repetition_is_a_run_of_sure_tokens_in_one_turn(
    logprobs: list[float], turn: list[int], *, expected: bool
) -> None:
    assert is_repetition(turns(logprobs, turn), tokens=4) is expected


def test_the_run_is_of_3000_tokens() -> None:
    assert is_repetition(turns([SURE] * 3000, [0] * 3000))
    assert not is_repetition(turns([SURE] * 2999, [0] * 2999))


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 2)), max_size=20), st.integers(1, 6))
def test_repetition_as_a_loop_finds_it(tokens: list[tuple[bool, int]], wanted: int) -> None:
    tokens = sorted(tokens, key=lambda one: one[1])
    length, longest, before = 0, 0, -2
    for sure, turn in tokens:
        length = (length if turn == before else 0) + 1 if sure and turn >= 0 else 0
        longest, before = max(longest, length), turn
    made = turns([SURE if sure else UNSURE for sure, _ in tokens], [turn for _, turn in tokens])
    assert is_repetition(made, tokens=wanted) is (longest >= wanted)
