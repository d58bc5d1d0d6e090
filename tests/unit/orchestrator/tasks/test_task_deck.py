from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.tasks.task_deck import Cursor, TaskDeck
from echorl_testing.orchestrator.scripted_player import environment


def cursor(length: int = 5, seed: int = 0, **more: object) -> Cursor:
    return Cursor(environment="terminal", seed=seed, length=length, **more)


def test_each_epoch_is_a_permutation_of_its_own() -> None:
    deals = [cursor_.take() for cursor_ in [cursor()] for _ in range(10)]
    first, second = [t.index for t in deals[:5]], [t.index for t in deals[5:]]
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert first != second
    assert [ticket.epoch for ticket in deals] == [0] * 5 + [1] * 5
    assert [ticket.index for ticket in deals] != [cursor_.take().index for cursor_ in [cursor(seed=1)] for _ in deals]


def test_a_saved_cursor_returns_what_is_not_settled() -> None:
    before = cursor()
    tickets = [before.take() for _ in range(4)]
    before.settle(tickets[1].ordinal)
    before.settle(tickets[1].ordinal)
    state = before.state()
    assert (state.next, state.returned, state.length) == (4, [0, 2, 3], 5)
    after = cursor(state=state)
    assert after.has_returned
    assert [after.take() for _ in range(3)] == [tickets[0], tickets[2], tickets[3]]
    assert after.take() == before.take()


def test_a_source_of_another_length_goes_on_with_a_whole_epoch() -> None:
    before = cursor(5)
    for _ in range(7):
        before.take()
    after = cursor(3, state=before.state())
    assert not after.has_returned
    assert sorted(after.take().index for _ in range(3)) == [0, 1, 2]


def test_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="'terminal': found no tasks"):
        cursor(0)


def test_the_mixture_follows_the_weights_and_the_seed() -> None:
    environments = [environment("a", weight=3.0), environment("b", weight=1.0), environment("c", weight=0.0)]
    lengths = {"a": 7, "b": 7, "c": 7}

    def names(seed: int) -> list[str]:
        deck = TaskDeck(environments, lengths, seed)
        return [deck.take().environment for _ in range(2000)]

    counts = Counter(names(3))
    assert counts["c"] == 0
    assert counts["a"] / 2000 == pytest.approx(0.75, abs=0.03)
    assert names(3) == names(3) != names(4)


def test_a_deck_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="weight above 0"):
        TaskDeck([environment(weight=0.0)], {"terminal": 3}, 0)


@given(st.integers(0, 40), st.integers(0, 40), st.sets(st.integers(0, 39)))
def test_a_resumed_deck_deals_each_task_once(taken: int, later: int, settled: set[int]) -> None:
    environments = [environment("a"), environment("b", weight=2.0)]
    lengths = {"a": 3, "b": 5}
    whole = TaskDeck(environments, lengths, 9)
    every = [whole.take() for _ in range(taken + later)]
    before = TaskDeck(environments, lengths, 9)
    tickets = [before.take() for _ in range(taken)]
    done = [ticket for number, ticket in enumerate(tickets) if number in settled]
    for ticket in done:
        before.settle(ticket)
    state = before.state()
    for ticket in every:
        assert state.is_settled(ticket.environment, ticket.ordinal) == (ticket in done)
    assert not state.is_settled("another", 0)
    after = TaskDeck(environments, lengths, 9, state)
    dealt = [after.take() for _ in range(taken - len(done) + later)]
    key = lambda ticket: (ticket.environment, ticket.ordinal)  # noqa: E731
    assert sorted(map(key, done + dealt)) == sorted(map(key, every))
    assert after.upcoming() == whole.upcoming()


def test_a_task_of_an_epoch_long_past_can_be_dealt() -> None:
    before = cursor(2)
    for _ in range(8):
        ticket = before.take()
        if ticket.epoch != 1:
            before.settle(ticket.ordinal)
    after = cursor(2, state=before.state())
    assert [after.take().epoch for _ in range(3)] == [1, 1, 4]
