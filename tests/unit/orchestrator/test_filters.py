import pytest

from echorl_core.config import FilterConfig
from echorl_orchestrator.filters import Verdict, judge


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
