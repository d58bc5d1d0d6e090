"""RAE as it is shipped: by hand, over batches, and across a resume."""

import math
from pathlib import Path

import pytest

from echorl_core.config import AdvantageConfig, FilterConfig
from echorl_orchestrator.advantages.rae import BaselineState
from echorl_orchestrator.batches.batch_metrics import SinceLastBatch, batch_columns, member_columns
from echorl_orchestrator.batches.rae_baselines import RunBaselines
from echorl_orchestrator.batches.sealing import SavedState, compose
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.records.recorder import train_row
from echorl_orchestrator.rollout.groups import Group, ReadyEpisode, close, units_of
from echorl_orchestrator.tasks.task_deck import CursorState, DeckState, Ticket
from echorl_testing.orchestrator.scripted_player import batch_config, environment, outcome, sample
from echorl_testing.orchestrator.scripted_policy import orchestrator_config

RAE = AdvantageConfig(type="rae")


def unit(episode: str, member: str, reward: float) -> EpisodeOutcome:
    made = outcome(f"{episode}/{member}", reward=reward, samples=[sample([0, 1, 1], episode=f"{episode}/{member}")])
    made.member, made.rewards = member, {"a": reward if member == "a" else -reward, "b": -1.0, "judge": 0.0}
    return made


def whole(episode: str, rewards: dict[str, float]) -> EpisodeOutcome:
    made = outcome(episode, reward=0.0, samples=[])
    made.units = [unit(episode, member, reward) for member, reward in rewards.items()]
    return made


def group(*outcomes: EpisodeOutcome) -> Group:
    made = Group("g", Ticket("terminal", 0, 0, 0), len(outcomes), 0)
    for index, one in enumerate(outcomes):
        made.add(index, one)
    return made


def config(advantage: AdvantageConfig = RAE, **fields: object):
    return orchestrator_config(Path("unused"), [environment()], advantage=advantage, **fields)


def saved(baselines: BaselineState | None, played: str = "terminal") -> SavedState:
    deck = DeckState(draws=1, cursors={played: CursorState(next=1, returned=[], length=4)})
    return SavedState(run_uid="u", attempt=1, step=3, deck=deck, groups=1, history="", totals={}, baselines=baselines)


def ready(*outcomes: EpisodeOutcome, **fields: object) -> list[ReadyEpisode]:
    return close(group(*outcomes), batch_config(advantage=RAE, **fields))


def test_an_episode_of_two_is_one_place_in_a_batch_and_two_units() -> None:
    episodes = ready(whole("e0", {"a": 1.0, "b": -1.0}), whole("e1", {"a": -1.0, "b": 1.0}))
    assert [len(one.units) for one in episodes] == [2, 2]
    assert [one.outcome.episode for one in units_of(episodes)] == ["e0/a", "e0/b", "e1/a", "e1/b"]
    assert all(math.isnan(one.advantage) for one in units_of(episodes))
    assert episodes[0].trainable_tokens() == 4
    single = close(group(outcome("s0"), outcome("s1", reward=0.0)), batch_config())
    assert units_of(single) == single
    assert train_row(1, 1, units_of(episodes)[0])["advantage"] is None


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # a: 1, then -1; b the opposite. b1 = 0.1 * 1 = 0.1; b2 = 0.9 * 0.1 - 0.1 = -0.01
        ("updateThenSubtract", [0.9, -0.9, -0.99, 0.99]),
        ("subtractThenUpdate", [1.0, -1.0, -1.1, 1.1]),
    ],
)
def test_advantages_by_hand_in_the_order_of_shipping(order: str, expected: list[float]) -> None:
    episodes = ready(whole("e0", {"a": 1.0, "b": -1.0}), whole("e1", {"a": -1.0, "b": 1.0}))
    units = units_of(episodes)
    shipping = RunBaselines.resumed(config(AdvantageConfig(type="rae", order=order)), None)
    moved = shipping.shipped(units)
    assert [one.advantage for one in units] == pytest.approx(expected)
    assert [(one.member, one.task, one.value) for one in moved.state().baselines] == [
        ("a", 1, pytest.approx(-0.01)),
        ("b", 1, pytest.approx(0.01)),
    ]
    # A batch that is given up has moved nothing.
    assert shipping.state() == BaselineState(baselines=[])


def test_a_resumed_run_goes_on_with_its_baselines_and_fails_without() -> None:
    first = RunBaselines.resumed(config(), None).shipped(units_of(ready(whole("e0", {"a": 1.0, "b": -1.0}))))
    straight = units_of(ready(whole("e1", {"a": 1.0})))
    first.shipped(straight)
    again = units_of(ready(whole("e1", {"a": 1.0})))
    RunBaselines.resumed(config(), saved(first.state())).shipped(again)
    assert [one.advantage for one in again] == [one.advantage for one in straight] == [pytest.approx(0.81)]
    with pytest.raises(BadInputError, match=r"environments.terminal: .*no RAE baselines \(step 3\)"):
        RunBaselines.resumed(config(), saved(None))
    assert RunBaselines.resumed(config(AdvantageConfig()), saved(None)).state() is None


def test_a_baseline_per_member_survives_a_resume_and_does_not_become_another_kind() -> None:
    per_member = config(AdvantageConfig(type="rae", baseline_per="member"))
    first = RunBaselines.resumed(per_member, None).shipped(units_of(ready(whole("e0", {"a": 1.0}))))
    again = units_of(ready(whole("e1", {"a": 1.0})))
    again[0].outcome.task_key = "another"
    RunBaselines.resumed(per_member, saved(first.state())).shipped(again)
    assert [one.advantage for one in again] == [pytest.approx(0.81)]
    with pytest.raises(BadInputError, match=r"environments.terminal: state of step 3: .*found one per member"):
        RunBaselines.resumed(config(), saved(first.state()))


def test_an_environment_that_came_to_the_run_later_begins_at_0() -> None:
    units = units_of(ready(whole("e0", {"a": 1.0})))
    RunBaselines.resumed(config(), saved(None, played="digits")).shipped(units)
    assert [one.advantage for one in units] == [pytest.approx(0.9)]


def test_filters_take_units_and_zero_advantage_waits_for_the_batch() -> None:
    rules = [FilterConfig(type="zeroAdvantage")]
    episodes = ready(whole("e0", {"a": 0.0, "b": 1.0}), filters=rules)
    assert not any(one.filtered for one in episodes)
    units = units_of(episodes)
    RunBaselines.resumed(config(), None).shipped(units)
    content = compose(units, batch_config(advantage=RAE, filters=rules), frozenset(), step=1)
    assert content is not None
    assert content.sample_ids == ["e0/b/0"]
    assert (units[0].verdict.rl, units[1].verdict.rl) == (False, True)
    assert content.denominators["rl"] == 2.0


def test_facts_of_members_by_hand() -> None:
    episodes = units_of(ready(whole("e0", {"a": 1.0, "b": -1.0}), whole("e1", {"a": 0.5}), whole("e2", {"a": 0.0})))
    # What each unit is: e0/a, e0/b, e1/a, and e2/a, which a filter kept out of the batch.
    for one, turns, tokens, advantage in zip(
        episodes, (1, 2, 3, 5), (10, 7, 20, 30), (2.0, -3.0, -1.0, 9.0), strict=True
    ):
        one.outcome.num_turns, one.outcome.sampled_tokens, one.advantage = turns, tokens, advantage
    assert member_columns("debate", episodes, episodes[:3]) == {
        "reward/debate/a": 0.5,
        "reward/debate/a/mean": 0.5,
        "reward/debate/a/std": pytest.approx((0.5 / 3) ** 0.5),
        "reward/debate/a/min": 0.0,
        "reward/debate/a/max": 1.0,
        "reward/debate/b": -1.0,
        "reward/debate/b/mean": -1.0,
        "reward/debate/b/std": 0.0,
        "reward/debate/b/min": -1.0,
        "reward/debate/b/max": -1.0,
        "reward/debate/judge": 0.0,
        "reward/debate/judge/mean": 0.0,
        "reward/debate/judge/std": 0.0,
        "reward/debate/judge/min": 0.0,
        "reward/debate/judge/max": 0.0,
        "turns/debate/a/mean": 3.0,
        "turns/debate/b/mean": 2.0,
        "sampled_tokens/debate/a/mean": 20.0,
        "sampled_tokens/debate/b/mean": 7.0,
        "advantage/debate/a/mean": 0.5,
        "advantage/debate/b/mean": -3.0,
    }


def test_a_batchs_facts_tell_members_by_environment_alone() -> None:
    units = units_of(ready(whole("e0", {"a": 1.0, "b": -1.0})))
    RunBaselines.resumed(config(), None).shipped(units)
    content = compose(units, batch_config(advantage=RAE), frozenset(), step=1)
    assert content is not None
    facts = batch_columns(units, content, 1, SinceLastBatch())
    assert (facts["reward/terminal/b/min"], facts["turns/terminal/b/mean"]) == (-1.0, 1.0)
    assert facts["advantage/terminal/a/mean"] == pytest.approx(0.9)  # the baseline moved to 0.1 first
    assert "turns/all/a/mean" not in facts


def test_a_member_whose_units_were_all_filtered_has_no_advantage() -> None:
    episodes = units_of(ready(whole("e0", {"a": 1.0})))
    assert member_columns("debate", episodes, [])["advantage/debate/a/mean"] is None


def test_one_agent_has_no_facts_of_members() -> None:
    alone = close(group(outcome("s0")), batch_config())
    assert member_columns("terminal", alone, alone) == {}
