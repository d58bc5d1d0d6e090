import math

import numpy as np
import pytest

from echorl_core.config import AdvantageConfig, FilterConfig, LengthShapingConfig
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_orchestrator.rollout.groups import Group, close, usable_scores, version_low_of
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import A, C, batch_config, outcome, sample


def group(*rewards: float | None, size: int = 4) -> Group:
    made = Group("g1", Ticket("terminal", 0, 0, 0), size, seed=1)
    for index, reward in enumerate(rewards):
        error = ErrorKind.PROVIDER if reward is None else None
        made.add(index, outcome(f"e{index}", reward=reward, error=error))
    return made


def test_failed_episodes_do_not_count_for_the_baseline() -> None:
    closed = close(group(1.0, None, 0.0, 0.5), batch_config())
    assert [(one.outcome.episode, one.advantage) for one in closed] == [("e0", 0.5), ("e2", -0.5), ("e3", 0.0)]
    assert all(one.partial for one in closed)


def test_failed_episodes_count_for_no_kind_of_baseline() -> None:
    max_rl = batch_config(advantage=AdvantageConfig(type="maxRl"))
    assert [one.advantage for one in close(group(1.0, None, 0.0, None), max_rl)] == [1.0, -1.0]
    by_turns = batch_config(advantage=AdvantageConfig(length_shaping=LengthShapingConfig(by="turns")))
    made = group(1.0, None, 1.0, 0.0)
    made.survivors[0].num_turns, made.survivors[2].num_turns = 1, 3
    made.failures.clear()
    assert [one.advantage for one in close(made, by_turns)] == pytest.approx([2 / 3, 1 / 6, -5 / 6])


@pytest.mark.parametrize(("kind", "advantage"), [("groupMean", 0.0), ("maxRl", 0.0), ("none", 0.7)])
def test_the_only_survivor_of_a_group(kind: str, advantage: float) -> None:
    config = batch_config(
        advantage=AdvantageConfig(type=kind), filters=[FilterConfig(type="zeroAdvantage", stage="group")]
    )
    [episode] = close(group(0.7, None, None, None), config)
    assert episode.advantage == advantage
    assert episode.verdict.rl is (advantage != 0)


def test_a_reward_that_max_rl_cannot_use_names_environment_and_group() -> None:
    with pytest.raises(BadInputError, match=r"spec.algorithm.advantage: maxRl: found .* terminal, group g1"):
        close(group(1.0, -1.0, size=2), batch_config(advantage=AdvantageConfig(type="maxRl")))


def test_given_advantages_are_taken_as_they_are() -> None:
    closed = close(group(1.0, None, 0.0), batch_config(), given=[0.5, -3.0])
    assert [(one.outcome.episode, one.advantage) for one in closed] == [("e0", 0.5), ("e2", -3.0)]


def test_a_whole_group_is_not_partial() -> None:
    assert not any(one.partial for one in close(group(1.0, 0.0, 1.0, 1.0), batch_config()))
    assert not group(None, None, None, None).partial


def test_a_reward_that_is_not_finite_is_an_error_of_the_environment() -> None:
    found = group()
    assert found.add(0, outcome(reward=math.nan)) is ErrorKind.ENV
    assert found.failures == {ErrorKind.ENV: 1}


def test_an_episode_that_nobody_scores_has_failed() -> None:
    found = group(1.0, 0.0)
    found.add(2, outcome("e2", reward=None))
    found.drop_unscored()
    assert sorted(found.survivors) == [0, 1]
    assert found.failures == {ErrorKind.ENV: 1}


def test_group_scores_replace_rewards() -> None:
    closed = close(group(0.0, 0.0, size=2), batch_config(), scores=[3.0, 1.0])
    assert [(one.outcome.reward, one.advantage) for one in closed] == [(3.0, 1.0), (1.0, -1.0)]


@pytest.mark.parametrize(("scores", "fits"), [([1.0, 2.0], True), ([1.0], False), ([1.0, math.inf], False)])
def test_scores_that_can_be_used(scores: list[float], *, fits: bool) -> None:
    assert usable_scores(scores, 2) is fits


def test_pending_episodes_count_until_they_fail() -> None:
    assert group(1.0, None).pending_or_alive == 3


def test_the_lowest_version_is_that_of_the_action_tokens() -> None:
    one = outcome(version=9, samples=[sample([C, A, A], version=4), sample([C, A], version=3)])
    assert version_low_of(one) == 3
    assert version_low_of(outcome(version=9, samples=[sample([C, C])])) == 9


def test_staleness_and_trainable_tokens() -> None:
    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group")])
    (episode, _) = close(group(1.0, 1.0, size=2), config)
    assert episode.staleness(step=3) == 2
    assert episode.verdict.hits == ("zeroAdvantage",)
    assert episode.trainable_tokens() == 2  # the two ECHO tokens; scope rl leaves them on
    assert np.count_nonzero(episode.outcome.samples[0].rl_weight) == 2


@pytest.mark.parametrize(
    ("rewards", "hits"),
    [((0.0, 0.0), True), ((0.0, 0.5), True), ((0.5, 0.5), False), ((0.8, 1.0), True), ((1.0, 1.0), True)],
)
def test_a_group_that_is_too_easy_or_too_hard(rewards: tuple[float, float], *, hits: bool) -> None:
    rule = FilterConfig(type="difficulty", stage="group", scope="all", easy_from=0.9, hard_to=0.25)
    episodes = close(group(*rewards, size=2), batch_config(filters=[rule]))
    assert [episode.verdict.hits for episode in episodes] == [("difficulty",) if hits else ()] * 2
    assert [episode.trainable_tokens() > 0 for episode in episodes] == [not hits] * 2
