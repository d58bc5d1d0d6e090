"""Who plays and learns, by hand and for all manifests of up to five members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import EnvironmentConfig, SeatConfig
from echorl_orchestrator.episodes.multi_agent.bindings import POLICY, bind
from echorl_orchestrator.failures import EpisodeError

OPPONENT = SeatConfig(policy="endpoint", url="http://opponent", model="big")
OTHER = SeatConfig(policy="base")
JUDGE = SeatConfig(policy="endpoint", url="http://judge", model="judge")


def environment(members: dict[str, SeatConfig], drop: tuple[str, ...] = ("judge",)) -> EnvironmentConfig:
    return EnvironmentConfig(name="debate", type="builtin:debate", members=members, drop_members=list(drop))


@pytest.mark.parametrize(
    ("seats", "learner", "wanted"),
    [
        ({"b": OPPONENT}, "a", {"a": POLICY, "b": OPPONENT, "judge": POLICY}),
        ({"b": OPPONENT}, "b", {"a": OPPONENT, "b": POLICY, "judge": POLICY}),
        ({"a": OPPONENT, "judge": JUDGE}, "a", {"a": POLICY, "b": OPPONENT, "judge": JUDGE}),
        # Each is somebody's opponent: whoever learns steps back, and nobody has to move.
        ({"a": OTHER, "b": OPPONENT}, "a", {"a": POLICY, "b": OPPONENT, "judge": POLICY}),
        ({"a": OTHER, "b": OPPONENT}, "b", {"a": OTHER, "b": POLICY, "judge": POLICY}),
    ],
)
def test_the_opponent_sits_where_the_learner_does_not(
    seats: dict[str, SeatConfig], learner: str, wanted: dict[str, SeatConfig]
) -> None:
    for evaluation in (False, True):
        found = bind(environment(seats), ["a", "b", "judge"], {"learnerSeat": learner}, evaluation=evaluation)
        assert (found.seats, found.learners) == (wanted, [learner])
        assert list(found.seats) == ["a", "b", "judge"]


def test_of_three_the_opponent_takes_the_first_seat_of_the_policy() -> None:
    found = bind(environment({"c": OPPONENT}), ["a", "b", "c"], {"learnerSeat": "c"}, evaluation=False)
    assert found.seats == {"a": OPPONENT, "b": POLICY, "c": POLICY}


def test_without_a_frozen_player_all_learn_whatever_the_task_says() -> None:
    found = bind(environment({"judge": JUDGE}), ["a", "b", "judge"], {"learnerSeat": "b"}, evaluation=False)
    assert (found.seats["judge"], found.learners) == (JUDGE, ["a", "b"])
    held_out = bind(environment({}), ["a", "b", "judge"], {"learnerSeat": "b"}, evaluation=True)
    assert held_out.learners == ["b"]


@pytest.mark.parametrize("task", [{}, {"learnerSeat": "judge"}, {"learnerSeat": "z"}, {"learnerSeat": ["a"]}])
def test_a_task_that_names_nobody_who_could_learn_is_refused(task: dict[str, object]) -> None:
    with pytest.raises(EpisodeError, match=r"task.learnerSeat: needed by a frozen seat; found .*, accepted: a or b"):
        bind(environment({"b": OPPONENT}), ["a", "b", "judge"], task, evaluation=False)


@given(st.data())
def test_every_frozen_player_keeps_playing_beside_a_policy_that_plays_its_seat(data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from("abcde"), min_size=2, unique=True))
    seats = {name: data.draw(st.sampled_from([POLICY, OPPONENT, OTHER])) for name in members}
    dropped = data.draw(st.lists(st.sampled_from(members), max_size=len(members) - 1, unique=True))
    candidates = [name for name in members if name not in dropped]
    learner = data.draw(st.sampled_from(candidates))
    found = bind(environment(seats, tuple(dropped)), members, {"learnerSeat": learner}, evaluation=False)
    frozen = [seats[name] for name in candidates if seats[name] != POLICY]
    assert found.learners == ([learner] if frozen else candidates)
    assert all(found.seats[name] == POLICY for name in found.learners)
    assert all(found.seats[name] == seats[name] for name in dropped)
    playing = [found.seats[name] for name in candidates if found.seats[name] != POLICY]
    if POLICY in [seats[name] for name in candidates]:
        assert sorted(one.policy for one in playing) == sorted(one.policy for one in frozen)
    else:
        assert len(playing) == len(frozen) - 1
