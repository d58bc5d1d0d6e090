"""What the agent and the tests of a row may take of an episode."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.times import budgets
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.workers.host import Host

SECONDS = st.none() | st.floats(0.1, 1e5)


@pytest.mark.parametrize(
    ("episode_s", "agent_s", "tests_s", "expected"),
    [
        (600, None, None, (360, 120)),
        (2700, None, None, (1620, 540)),
        (600, 100, None, (100, 120)),
        (600, 400, None, (400, 80)),
        (600, None, 100, (380, 100)),
        (600, None, 470, (10, 470)),
        (600, 400, 150, (400, 150)),
    ],
)
def test_a_fifth_is_kept_and_tests_get_a_fifth(
    episode_s: float, agent_s: float | None, tests_s: float | None, expected: tuple[float, float]
) -> None:
    assert budgets(episode_s, agent_s, tests_s) == pytest.approx(expected)


@given(episode_s=st.floats(1, 1e5), agent_s=SECONDS, tests_s=SECONDS)
def test_budgets_fit_or_are_refused(episode_s: float, agent_s: float | None, tests_s: float | None) -> None:
    try:
        agent, tests = budgets(episode_s, agent_s, tests_s)
    except BadInputError:
        assert (agent_s or 0) + (tests_s or 0) >= 0.8 * episode_s
        return
    assert min(agent, tests) > 0
    assert agent + tests < episode_s
    assert agent_s in {None, agent}
    assert tests_s in {None, tests}


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            {"agent_timeout_s": 1800, "test_timeout_s": 600},
            "args.agent_timeout_s and args.test_timeout_s: found 2400 s together, accepted is less than episodeTimeout,"
            " which is 600 s",
        ),
        (
            {"agent_timeout_s": 480},
            "args.agent_timeout_s: found 480 s, accepted is less than 480 s, which is what episodeTimeout (600 s)",
        ),
        ({"test_timeout_s": 500}, "args.test_timeout_s: found 500 s, accepted is less than 480 s"),
    ],
)
def test_what_does_not_fit_into_an_episode_refuses_the_run(args: dict[str, float], problem: str) -> None:
    config = EnvironmentConfig(name="mine", type="builtin:swe", args=args, episode_timeout_s=600.0)
    with pytest.raises(BadInputError, match=re.escape(f"environments.mine: {problem}")):
        Host(config)


def test_what_one_sandbox_may_use_is_said_by_the_run_alone() -> None:
    config = EnvironmentConfig(name="mine", type="builtin:swe", args={"limits": {"memory_mib": 256}})
    with pytest.raises(BadInputError, match=r"environments.mine.args: limits: Extra inputs are not permitted"):
        Host(config)


def test_the_example_fits() -> None:
    path = Path(__file__).parents[5] / "examples" / "swe.yaml"
    for environments in yaml.safe_load(path.read_text())["spec"]["environments"].values():
        times = SweArgs.model_validate(environments[0]["args"]).times(180.0)
        assert (times.agent_s, times.tests_s) == pytest.approx((108, 36))
