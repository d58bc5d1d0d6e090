import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.advantages.rae import Baseline, Baselines, BaselineState, MissingBaselines, Order, Per

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


def test_a_baseline_per_member_is_that_of_all_its_tasks() -> None:
    """Rewards 1 and -1 of two tasks with momentum 0.5 move one baseline: 0, 0.5, -0.25."""
    baselines = Baselines(per="member", momentum=0.5)
    assert [baselines.advantage("game", task, "white", reward) for task, reward in ((1, 1.0), ("1", -1.0))] == [
        0.5,
        -0.75,
    ]
    assert baselines.value("game", 7, "white") == -0.25
    assert baselines.value("game", 1, "black") == baselines.value("other", 1, "white") == 0.0
    assert baselines.state().baselines == [Baseline(environment="game", task=None, member="white", value=-0.25)]


def test_tasks_that_come_once_leave_a_false_advantage_unless_the_baseline_is_the_members() -> None:
    """A seat that always gets 0.4: per task each of 200 tasks has the advantage 0.36; per member they die away."""
    found = {
        per: [baselines.advantage("game", task, "white", 0.4) for task in range(200)]
        for per, baselines in (("task", Baselines()), ("member", Baselines(per="member")))
    }
    assert found["task"] == pytest.approx([0.36] * 200)
    assert found["member"] == pytest.approx([0.4 * 0.9 ** (n + 1) for n in range(200)])


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
    per: Per = data.draw(st.sampled_from(get_args(Per)))
    whole, before = (Baselines(per=per, order=order) for _ in range(2))
    wanted = [whole.advantage("game", *one) for one in trajectories]
    found = [before.advantage("game", *one) for one in trajectories[:cut]]
    saved = msgspec.msgpack.encode(before.state())
    after = Baselines.resumed(msgspec.msgpack.decode(saved, type=BaselineState), per=per, order=order)
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


@pytest.mark.parametrize(("saved", "asked"), [("task", "member"), ("member", "task")])
def test_baselines_of_another_kind_are_refused(saved: Per, asked: Per) -> None:
    baselines = Baselines(per=saved)
    baselines.advantage("game", 1, "white", 1.0)
    with pytest.raises(ValueError, match=f"member white: found one per {saved}, accepted is one per {asked}"):
        Baselines.resumed(baselines.state(), per=asked)


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
