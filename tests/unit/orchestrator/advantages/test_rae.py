import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.advantages.rae import Baseline, Baselines, BaselineState, MissingBaselines, Order

ORDERS = get_args(Order)


def test_both_orders_by_hand() -> None:
    """Rewards 1 and -1 with momentum 0.5: the baseline goes 0, 0.5, -0.25."""
    first = Baselines(momentum=0.5, order="updateThenSubtract")
    assert [first.advantage("game", 1, "white", reward) for reward in (1.0, -1.0)] == [0.5, -0.75]
    second = Baselines(momentum=0.5, order="subtractThenUpdate")
    assert [second.advantage("game", 1, "white", reward) for reward in (1.0, -1.0)] == [1.0, -1.5]
    assert first.value("game", 1, "white") == second.value("game", 1, "white") == -0.25


def test_the_default_is_momentum_nine_tenths_and_update_first() -> None:
    assert Baselines().advantage("game", 1, "white", 1.0) == pytest.approx(0.9)


@pytest.mark.parametrize("order", ORDERS)
def test_every_environment_task_and_member_has_a_baseline_of_its_own(order: Order) -> None:
    baselines = Baselines(order=order)
    for key in (("other", 1, "white"), ("game", 2, "white"), ("game", "1", "white"), ("game", 1, "black")):
        baselines.advantage(*key, 5.0)
    assert baselines.value("game", 1, "white") == 0.0
    assert baselines.value("game", "1", "white") == pytest.approx(0.5)


rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=30)


@given(rewards, st.floats(0.01, 0.99))
def test_the_orders_differ_by_the_momentum_alone(values: list[float], momentum: float) -> None:
    first, second = (
        Baselines(momentum=momentum, order=order) for order in ("updateThenSubtract", "subtractThenUpdate")
    )
    for reward in values:
        shrunk, whole = (one.advantage("game", 1, "white", reward) for one in (first, second))
        assert shrunk == pytest.approx(momentum * whole, abs=1e-9)


@given(
    st.lists(st.tuples(st.sampled_from([1, "1", 2]), st.sampled_from("ab"), st.floats(-9, 9)), max_size=20), st.data()
)
def test_a_resumed_run_goes_on_as_if_nothing_had_been(trajectories, data) -> None:  # type: ignore[no-untyped-def]
    cut = data.draw(st.integers(0, len(trajectories)))
    order: Order = data.draw(st.sampled_from(ORDERS))
    whole, before = Baselines(order=order), Baselines(order=order)
    wanted = [whole.advantage("game", *one) for one in trajectories]
    found = [before.advantage("game", *one) for one in trajectories[:cut]]
    saved = msgspec.msgpack.encode(before.state())
    after = Baselines.resumed(msgspec.msgpack.decode(saved, type=BaselineState), order=order)
    found += [after.advantage("game", *one) for one in trajectories[cut:]]
    assert found == wanted
    assert msgspec.msgpack.encode(after.state()) == msgspec.msgpack.encode(whole.state())


def test_equal_baselines_are_equal_bytes_whatever_came_first() -> None:
    one, other = Baselines(), Baselines()
    keys = [("game", 2, "a"), ("game", "2", "a"), ("game", 10, "b"), ("arena", "x", "a")]
    for made, order in ((one, keys), (other, keys[::-1])):
        for key in order:
            made.advantage(*key, 1.0)
    assert msgspec.msgpack.encode(one.state()) == msgspec.msgpack.encode(other.state())


def test_a_resume_without_baselines_fails() -> None:
    with pytest.raises(MissingBaselines, match="the checkpoint to resume from has no RAE baselines"):
        Baselines.resumed(None)


@pytest.mark.parametrize("values", [[math.nan], [1.0, 1.0]], ids=["not finite", "twice"])
def test_damaged_baselines_are_refused(values: list[float]) -> None:
    state = BaselineState(
        baselines=[Baseline(environment="game", task=1, member="white", value=value) for value in values]
    )
    with pytest.raises(ValueError, match="baseline of environment game, task 1, member white"):
        Baselines.resumed(state)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_moves_nothing(reward: float) -> None:
    baselines = Baselines()
    with pytest.raises(ValueError, match="reward of environment game, task '7', member white: found"):
        baselines.advantage("game", "7", "white", reward)
    assert baselines.state().baselines == []


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_a_momentum_outside_its_range(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum: found"):
        Baselines(momentum=momentum)
