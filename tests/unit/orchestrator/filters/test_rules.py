import msgspec
import numpy as np
import pytest

from echorl_core.config import FilterConfig, HookConfig
from echorl_orchestrator.filters.rules import Verdict, judge, matches
from echorl_testing.orchestrator.scripted_player import A, C, sample


def rule(**fields: object) -> FilterConfig:
    return FilterConfig(type="zeroAdvantage", **fields)


@pytest.mark.parametrize(
    ("fields", "rl", "ce"),
    [
        ({"scope": "rl"}, False, True),
        ({"scope": "all"}, False, False),
        ({"scope": "all", "enforce": False}, True, True),
    ],
)
def test_what_a_match_takes_away(fields: dict[str, object], *, rl: bool, ce: bool) -> None:
    verdict = judge([rule(**fields)], "batch", 0.0)
    assert verdict == Verdict(("zeroAdvantage",), rl=rl, ce=ce)


def test_an_advantage_that_is_not_zero_passes() -> None:
    assert judge([rule(scope="all")], "batch", -1e-6) == Verdict()


def test_filters_act_in_their_stage_alone() -> None:
    assert judge([rule(stage="group")], "batch", 0.0) == Verdict()
    assert judge([rule(stage="group")], "group", 0.0).hits == ("zeroAdvantage",)


def test_verdicts_add_up() -> None:
    both = Verdict(("a",), rl=False).and_then(Verdict(("b",), ce=False))
    assert both == Verdict(("a", "b"), rl=False, ce=False)


def test_rules_that_hold_by_their_index_enforce_or_report() -> None:
    gibberish = FilterConfig(type="gibberish", enforce=False)
    own = FilterConfig(type="custom", scope="all", hook=HookConfig(import_path="mine:poor"))
    rules = [gibberish, FilterConfig(type="repetition"), own]
    assert judge(rules, "batch", 0.0) == Verdict()
    assert judge(rules, "batch", 1.0, {0}) == Verdict(("gibberish",))
    assert judge(rules, "batch", 1.0, {0, 1}) == Verdict(("gibberish", "repetition"), rl=False)
    assert judge(rules, "batch", 1.0, {2}) == Verdict(("mine:poor",), rl=False, ce=False)
    assert judge(rules, "group", 1.0, {0, 1, 2}) == Verdict()


def test_a_rule_of_both_stages_is_named_once() -> None:
    rules = [rule(stage="group", enforce=False), rule()]
    assert judge(rules, "group", 0.0).and_then(judge(rules, "batch", 0.0)).hits == ("zeroAdvantage",)


def test_what_an_episode_sampled_decides() -> None:
    usual = sample([C, A, A], tokens=[1, 2, 3])
    odd = msgspec.structs.replace(
        sample([C, A, A], tokens=[1, 2, 120_000]), logprobs=np.array([0, -0.5, -20], np.float32)
    )
    rules = [rule(), FilterConfig(type="gibberish"), FilterConfig(type="repetition")]
    assert matches(rules, [usual], 151_936) == frozenset()
    assert matches(rules, [usual, odd], 151_936) == {1}
    with pytest.raises(ValueError, match="filter gibberish: the size of the vocabulary is not known"):
        matches(rules, [usual], None)
