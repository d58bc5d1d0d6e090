"""What is told of an eval's rewards: rates, averages, and which tokens are scored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.evals.eval_scores import average, fresh_observations, pass_at_k, pass_rates
from echorl_testing.orchestrator.scripted_player import A, C, E, sample


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 0, 2) == 0.0
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 2, 1) == 0.5
    assert pass_at_k(4, 3, 2) == 1.0
    with pytest.raises(ValueError, match="k=5"):
        pass_at_k(4, 1, 5)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_is_a_probability_that_grows_with_k(n: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, n))
    rates = [pass_at_k(n, correct, k) for k in range(1, n + 1)]
    assert rates == sorted(rates)
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    assert rates[0] == pytest.approx(correct / n)
    assert rates[-1] == float(correct > 0)


def test_pass_rates_need_rewards_of_zero_and_one() -> None:
    assert pass_rates([[0.5, 1.0]]) == {}
    assert pass_rates([]) == {}
    assert pass_rates([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0]]) == {
        "pass@1": 0.125,
        "pass@1/examples": 2,
        "pass@2": 0.25,
        "pass@2/examples": 2,
        "pass@4": 1.0,
        "pass@4/examples": 1,
    }


def test_examples_weigh_alike_in_the_average_whatever_has_failed() -> None:
    groups = [[1.0, 0.5, 0.0, 0.5], [2.0], []]  # means 0.5 and 2; nothing is left of the third
    assert average(groups, 4) == {"avg@4": 1.25, "avg@4/examples": 2}


def test_observations_that_branches_share_are_scored_once() -> None:
    first = sample([C, A, E, A, E], tokens=[1, 2, 3, 4, 5])
    second = sample([C, A, E, A, E, E], tokens=[1, 2, 3, 9, 8, 7], branch=1)
    third = sample([C, A, E], tokens=[1, 2, 3], branch=2)
    found = [(one.branch, positions) for one, positions in fresh_observations([first, second, third])]
    assert found == [(0, [2, 4]), (1, [4, 5])]
