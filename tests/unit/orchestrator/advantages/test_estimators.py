import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import AdvantageConfig, LengthShapingConfig
from echorl_orchestrator.advantages.estimators import RewardError, advantages, shaped

MAX_RL = AdvantageConfig(type="maxRl")
SHAPED = AdvantageConfig(length_shaping=LengthShapingConfig(by="turns"))
MEAN, NONE = AdvantageConfig(type="groupMean"), AdvantageConfig(type="none")


def test_group_mean_by_hand() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], MEAN) == [0.75, -0.25, -0.25, -0.25]


def test_none_is_the_reward_itself() -> None:
    assert advantages([1.0, 0.25], NONE) == [1.0, 0.25]


def test_equal_rewards_give_exact_zeros() -> None:
    assert advantages([0.1] * 3, MEAN) == [0.0, 0.0, 0.0]
    assert advantages([0.0, 0.0], MEAN) == [0.0, 0.0]


def test_a_group_of_one_has_no_advantage() -> None:
    assert advantages([0.7], MEAN) == [0.0]
    assert advantages([], MEAN) == []


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_advantages_of_a_group_cancel_and_keep_differences(rewards: list[float]) -> None:
    found = advantages(rewards, MEAN)
    assert math.fsum(found) == pytest.approx(0, abs=1e-9)
    assert [one - found[0] for one in found] == pytest.approx([one - rewards[0] for one in rewards], abs=1e-9)


def test_max_rl_by_hand() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], MAX_RL) == [3.0, -1.0, -1.0, -1.0]
    assert advantages([1.0, 1.0, 1.0, 0.0], MAX_RL) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert advantages([0.5, 0.25], MAX_RL) == pytest.approx([1 / 3, -1 / 3])


def test_max_rl_without_a_success_and_alone() -> None:
    assert advantages([0.0, 0.0], MAX_RL) == [0.0, 0.0]
    assert advantages([0.7], MAX_RL) == [0.0]
    assert advantages([0.1] * 3, MAX_RL) == [0.0, 0.0, 0.0]
    assert advantages([], MAX_RL) == []


def test_max_rl_refuses_rewards_below_zero() -> None:
    with pytest.raises(RewardError, match="maxRl: found a reward of -1, accepted are rewards of at least 0"):
        advantages([1.0, -1.0], MAX_RL)


def test_length_shaping_by_hand() -> None:
    """Mean cost of the two best is 4: half of it gives half a reward more; others gain nothing."""
    assert shaped([1.0, 1.0, 0.0], [2, 6, 1]) == [1.5, 1.0, 0.0]
    assert advantages([1.0, 1.0, 0.0], SHAPED, [2, 6, 1]) == pytest.approx([2 / 3, 1 / 6, -5 / 6])


@pytest.mark.parametrize(
    ("rewards", "costs"),
    [([0.0, 0.0], [1, 9]), ([-1.0, -2.0], [1, 9]), ([1.0, 0.0], [0, 5]), ([2.0], [7]), ([1.0, 1.0], [3, 3])],
    ids=["no success", "no positive reward", "no cost", "one of one", "equal costs"],
)
def test_length_shaping_changes_nothing_where_there_is_nothing_to_compare(
    rewards: list[float], costs: list[float]
) -> None:
    assert shaped(rewards, costs) == rewards


finite = st.floats(-10, 10)


@given(st.lists(st.tuples(finite, st.floats(0, 1000)), min_size=1, max_size=12), st.randoms())
def test_length_shaping_keeps_the_order_of_rewards_and_at_most_doubles(pairs, random) -> None:  # type: ignore[no-untyped-def]
    rewards, costs = [list(column) for column in zip(*pairs, strict=True)]
    found = shaped(rewards, costs)
    best = max(rewards)
    assert all(one == reward for one, reward in zip(found, rewards, strict=True) if reward < best)
    assert all(best <= one <= 2 * best for one, reward in zip(found, rewards, strict=True) if reward == best > 0)
    order = list(range(len(pairs)))
    random.shuffle(order)
    moved = shaped([rewards[index] for index in order], [costs[index] for index in order])
    assert moved == pytest.approx([found[index] for index in order])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.sampled_from([MEAN, NONE, MAX_RL]), st.randoms())
def test_order_does_not_matter(rewards, config, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(rewards)))
    random.shuffle(order)
    found = advantages(rewards, config)
    assert advantages([rewards[index] for index in order], config) == [found[index] for index in order]
