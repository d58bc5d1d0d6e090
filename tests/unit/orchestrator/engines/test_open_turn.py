"""Whatever a turn is cut into, by whom and where, it is the turn that nobody cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import SamplingConfig
from echorl_orchestrator.engines.answers import Frame
from echorl_orchestrator.engines.open_turn import OpenStream, OpenTurn, is_movable
from echorl_orchestrator.failures import EpisodeError, ErrorKind

STOP = 0
PROMPT = [3, 1, 4]


def follows(prefix: list[int], modulus: int) -> int:
    """A model: the next token is a function of all before it."""
    return sum((place + 1) * token for place, token in enumerate(prefix, 2)) % modulus


def logprob(prefix: list[int]) -> float:
    return -len(prefix) / 8


def uncut(modulus: int, budget: int) -> tuple[list[int], list[float], str]:
    ids: list[int] = []
    while len(ids) < budget:
        ids.append(follows([*PROMPT, *ids], modulus))
        if ids[-1] == STOP:
            break
    logprobs = [logprob([*PROMPT, *ids[:place]]) for place in range(len(ids))]
    return ids, logprobs, "stop" if ids[-1] == STOP else "length"


def frames(turn: OpenTurn, modulus: int, sizes: list[int]) -> list[Frame]:
    """What an engine streams for what is asked for, in frames of these sizes by turns."""
    prefix, made, place = turn.ids(), [], 0
    ids: list[int] = []
    while len(ids) < turn.left and STOP not in ids:
        ids.append(follows([*prefix, *ids], modulus))
    while place < len(ids):
        part = ids[place : place + sizes[len(made) % len(sizes)]]
        logprobs = [logprob([*prefix, *ids[: place + one]]) for one in range(len(part))]
        place += len(part)
        reason = None if place < len(ids) else "stop" if STOP in ids else "length"
        made.append(Frame(part, logprobs, reason))
    return made


CUT = st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans())
"""Frames that arrive, how many of them are certain, and whether the engine is trusted afterwards."""


@given(
    modulus=st.integers(2, 30),
    budget=st.integers(1, 25),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    cuts=st.lists(CUT, max_size=6),
)
def test_any_cuts_give_the_turn_that_nobody_cut(
    modulus: int, budget: int, sizes: list[int], cuts: list[tuple[int, int, bool]]
) -> None:
    turn, counted = OpenTurn(PROMPT, budget, [STOP]), 0
    for version, (arrive, certain, trusted) in enumerate(cuts):
        if turn.finish_reason is not None:
            break
        stream, left = OpenStream(f"e{version}", "b", version, version), turn.left
        for number, frame in enumerate(frames(turn, modulus, sizes)[:arrive]):
            turn.take(stream, frame)
            if number < certain:
                stream.vouch(version)
        received = len(stream.token_ids)
        kept, lost = turn.break_off(stream, trusted=trusted)
        assert kept + lost == received
        assert turn.left == left - kept
        assert kept == 0 or trusted
        counted += kept
    if turn.finish_reason is None:
        stream = OpenStream("last", "b", 99, 99)
        for frame in frames(turn, modulus, sizes):
            turn.take(stream, frame)
        stream.vouch(99)
        turn.complete(stream)
    made = turn.generation(1.0)
    assert (made.token_ids, made.logprobs, made.finish_reason) == uncut(modulus, budget)
    low, high = made.versions()
    if made.segments:
        # Every token has the version of the engine that sampled it, and the turn is as old as its oldest.
        assert [low[place] for place in range(len(low))] == list(high)
        assert (made.version_low, made.version_high) == (min(low), max(high))
        assert len(low) == len(made.token_ids)
        assert sum(low < 99) == counted
        assert sorted(low) == list(low)
    else:
        assert low == high == made.version_low


def test_tokens_of_a_running_update_are_not_gone_on_from() -> None:
    turn, stream = OpenTurn(PROMPT, 9, [STOP]), OpenStream("e", "b", 4, 4)
    turn.take(stream, Frame([5, 6], [-1.0, -2.0], None))
    stream.vouch(5)
    turn.take(stream, Frame([7], [-3.0], None))
    assert turn.break_off(stream, trusted=True) == (2, 1)
    (segment,) = turn.segments
    assert (segment.token_ids, segment.logprobs) == ([5, 6], [-1.0, -2.0])
    assert (segment.version_low, segment.version_high) == (4, 5)
    assert (turn.ids(), turn.left) == ([*PROMPT, 5, 6], 7)


@pytest.mark.parametrize(("ids", "budget", "reason"), [([5, STOP], 9, "stop"), ([5, 6], 2, "length")])
def test_a_turn_whose_last_token_came_is_over_although_nobody_said_so(ids: list[int], budget: int, reason: str) -> None:
    turn, stream = OpenTurn(PROMPT, budget, [STOP]), OpenStream("e", "b", 4, 4)
    turn.take(stream, Frame(ids, [-1.0, -2.0], None))
    stream.vouch(4)
    turn.break_off(stream, trusted=True)
    assert turn.generation(0.0).finish_reason == reason


def test_what_cannot_be_moved_begins_anew() -> None:
    turn, stream = OpenTurn(PROMPT, 9, [STOP]), OpenStream("e", "b", 4, 4)
    turn.take(stream, Frame([5, 6], [-1.0, -2.0], None))
    stream.vouch(4)
    turn.break_off(stream, trusted=True)
    assert turn.begin_anew() == 2
    assert (turn.ids(), turn.left) == (PROMPT, 9)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([Frame([5, 6, 7], [-1.0] * 3, None)], "found 3 tokens, accepted are 2"),
        ([Frame([5], [-1.0], "stop"), Frame([6], [-1.0], "stop")], "behind the last one"),
    ],
)
def test_an_engine_that_goes_too_far_is_named(frames: list[Frame], reason: str) -> None:
    turn, stream = OpenTurn(PROMPT, 2, [STOP]), OpenStream("e", "b", 4, 4)
    *good, bad = frames
    for frame in good:
        turn.take(stream, frame)
    with pytest.raises(EpisodeError, match=reason) as caught:
        turn.take(stream, bad)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE


def test_penalties_of_sampled_tokens_alone_do_not_move() -> None:
    assert is_movable(SamplingConfig(temperature=0.3, top_p=0.5, top_k=4, repetition_penalty=1.2))
    assert not is_movable(SamplingConfig(presence_penalty=0.1))
    assert not is_movable(SamplingConfig(frequency_penalty=-0.1))
