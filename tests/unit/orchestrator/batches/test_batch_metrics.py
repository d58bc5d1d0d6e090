import pytest

from echorl_orchestrator.batches.batch_metrics import SinceLastBatch, batch_columns
from echorl_orchestrator.batches.sealing import compose
from echorl_orchestrator.episode_outcome import StopReason
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.metrics.statistics import statistics
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import batch_config, outcome


def ready(
    episode: str, *, environment: str = "terminal", advantage: float = 1.0, version: int = 2, **fields: object
) -> ReadyEpisode:
    made = outcome(episode, environment=environment, version=version)
    for name, value in fields.items():
        setattr(made, name, value)
    return ReadyEpisode(made, "g", Ticket(environment, 0, 0, 0), advantage, Verdict(), version, partial=False)


def test_statistics_by_hand() -> None:
    assert statistics([1.0, 2.0, 6.0]) == {
        "mean": 3.0,
        "std": pytest.approx((14 / 3) ** 0.5),
        "min": 1.0,
        "max": 6.0,
    }
    assert statistics([]) == {"mean": None, "std": None, "min": None, "max": None}


def test_play_is_over_filtered_episodes_too_and_training_over_the_batch_alone() -> None:
    """Step 5 trains version 4: samples of version 2 are 2 old, of version 4 fresh."""
    batch = [
        ready("e1", advantage=-1.0, num_turns=1, sampled_tokens=10, reward=0.0),
        ready("e2", advantage=3.0, num_turns=3, sampled_tokens=30, reward=1.0, version=4),
    ]
    before = ready("e3", environment="digits", advantage=0.0, num_turns=8, sampled_tokens=2, reward=1.0, version=0)
    before.outcome.environment_tokens = 12
    content = compose(batch, batch_config(), frozenset(), step=5)
    assert content is not None
    facts = batch_columns(batch, content, 5, SinceLastBatch(filtered=[before]))

    def of(name: str) -> tuple[object, ...]:
        return tuple(facts[f"{name}/{statistic}"] for statistic in ("mean", "std", "min", "max"))

    assert of("turns/terminal") == (2.0, 1.0, 1, 3)
    assert of("turns/all") == (4.0, pytest.approx((26 / 3) ** 0.5), 1, 8)
    assert of("sampled_tokens/terminal") == (20.0, 10.0, 10, 30)
    assert of("sampled_tokens/digits") == (2.0, 0.0, 2, 2)
    assert of("environment_tokens/terminal") == (2.0, 0.0, 2, 2)
    assert of("environment_tokens/all") == (pytest.approx(16 / 3), pytest.approx((200 / 9) ** 0.5), 2, 12)
    assert of("reward/all") == (pytest.approx(2 / 3), pytest.approx((2 / 9) ** 0.5), 0.0, 1.0)
    assert of("advantage/all") == of("advantage/terminal") == (1.0, 2.0, -1.0, 3.0)
    assert of("staleness/all") == of("staleness/terminal") == (1.0, 1.0, 0, 2)
    assert of("advantage/digits") == of("staleness/digits") == (None, None, None, None)


def test_shares_of_ends_by_environment_count_an_episode_of_several_members_once() -> None:

    def cut(episode: str) -> ReadyEpisode:
        return ready(episode, stop=StopReason.MAX_TURNS, truncated=True)

    batch = [
        ready("e1"),
        cut("e2"),
        ready("d1/left", environment="debate", member="left", stop=StopReason.SCHEDULE_EXHAUSTED),
        ready("d1/right", environment="debate", member="right", stop=StopReason.SCHEDULE_EXHAUSTED),
        ready("d2/left", environment="debate", member="left", stop=StopReason.TIMEOUT, truncated=True),
    ]
    content = compose(batch, batch_config(), frozenset(), step=3)
    assert content is not None
    facts = batch_columns(batch, content, 3, SinceLastBatch(filtered=[cut("e3"), cut("e4")]))

    def of(scope: str) -> dict[str, object]:
        prefix = f"stops/{scope}/"
        return {name.removeprefix(prefix): value for name, value in facts.items() if name.startswith(prefix) and value}

    assert of("terminal") == {"terminated": 0.25, "maxTurns": 0.75, "is_truncated": 0.75}
    assert of("debate") == {"scheduleExhausted": 0.5, "timeout": 0.5, "is_truncated": 0.5}
    assert of("all")["is_truncated"] == pytest.approx(4 / 6)
    assert facts["stops/terminal/promptTooLong"] == 0.0
    assert "stops/all/error" not in facts


def test_metrics_of_environments_are_over_the_episodes_that_have_them() -> None:
    batch = [
        ready("e1", metrics={"exit/code": 2.0}),
        ready("e2", metrics={"exit/code": 4.0, "pages": 7.0}),
        ready("e3"),
    ]
    content = compose(batch, batch_config(), frozenset(), step=3)
    assert content is not None
    facts = batch_columns(batch, content, 3, SinceLastBatch())
    found = {name: value for name, value in facts.items() if name.startswith("metrics/terminal/")}
    assert found == {
        "metrics/terminal/exit/code/mean": 3.0,
        "metrics/terminal/exit/code/std": 1.0,
        "metrics/terminal/exit/code/min": 2.0,
        "metrics/terminal/exit/code/max": 4.0,
        "metrics/terminal/pages/mean": 7.0,
        "metrics/terminal/pages/std": 0.0,
        "metrics/terminal/pages/min": 7.0,
        "metrics/terminal/pages/max": 7.0,
    }
