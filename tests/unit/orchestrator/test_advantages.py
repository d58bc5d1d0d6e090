import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import AdvantageConfig
from echorl_orchestrator.advantages import advantages

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
