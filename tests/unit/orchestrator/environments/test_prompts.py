"""Prompt packs are refused whole, with everything that is wrong, before a run starts."""

from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from echorl_orchestrator.environments.contract import Slot
from echorl_orchestrator.environments.prompts import PackText, PromptPack
from echorl_orchestrator.failures import BadInputError

MEMBERS = ["a", "judge"]
SCHEDULE = [Slot("one", "argue", ("a",)), Slot("two", "rule", ("judge",))]
TURNS = {"a": {"argue": "argue"}, "judge": {"default": "rule"}}


def pack(**text: Any) -> PromptPack:
    return PromptPack(PackText(**{"turns": TURNS, **text}), MEMBERS, SCHEDULE)


def test_templates_are_chosen_from_own_to_default() -> None:
    found = pack(
        system={"judge": "You judge {{ topic }}.", "default": "You are {{ member }}."},
        question={"default": "{{ topic }}?"},
        turns={"a": {"argue": "{{ slot }} {{ phase }}"}, "default": {"rule": "r", "default": "d{{ turn }}"}},
    )
    assert found.opening("judge", {"topic": "tea"}) == ("You judge tea.", "tea?")
    assert found.opening("a", {"topic": "tea"}) == ("You are a.", "tea?")
    assert found.turn("a", "argue", {"slot": "one"}) == "one argue"
    assert found.turn("judge", "rule", {}) == "r"
    assert found.turn("a", "other", {"turn": 2}) == "d2"
    assert pack().opening("a", {}) == (None, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"turns": {"a": {"argue": "x"}}}, "turns: found none for judge in phase 'rule'"),
        ({"turns": {"a": {"rule": "x"}, "default": {"rule": "x"}}}, "turns: found none for a in phase 'argue'"),
        ({"system": {"a": "{{ transcript }}"}}, "system.a: found transcript, which only turns"),
        ({"question": {"a": "{% if turn > 1 %}x{% endif %}"}}, "question.a: found turn"),
        ({"question": {"a": "{% for one in [] %}{{ one if heard }}{% endfor %}"}}, "question.a: found heard"),
        ({"system": {"a": "{% set slot = 1 %}{{ slot }}"}}, "system.a: found slot"),
        ({"system": {"a": "{% set x = phase %}{{ x }}"}}, "system.a: found phase"),
        ({"system": {"a": "{{ x"}}, "system.a: no template"),
        ({"system": {"z": "x"}}, "system: found 'z', accepted are a, judge and default"),
        ({"verdicts": {"A": "yes", "B": "YES"}}, "'YES' (B) and 'yes' (A) collide"),
        ({"verdicts": {"A": "A", "B": "A or B"}}, "collide: one is within the other"),
        ({"verdicts": {"A": " "}}, 'verdicts.A: found " "'),
    ],
)
def test_what_is_wrong_is_refused(text: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        pack(**text)
    assert message in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(BadInputError) as caught:
        pack(system={"a": "{{ turn }}"}, verdicts={"A": "x", "B": "x"})
    assert len(str(caught.value).splitlines()) == 2


def test_a_judges_last_word_counts() -> None:
    found = pack(verdicts={"A": "VERDICT: A", "B": "VERDICT: B"})
    assert found.verdict("Not verdict: b, rather Verdict: A.") == "A"
    assert found.verdict("I cannot say.") is None
    assert pack().verdict("anything") is None


def test_templates_are_sandboxed_and_know_all_their_variables() -> None:
    escape = pack(turns={"a": {"argue": "{{ ''.__class__.__mro__ }}"}, "judge": TURNS["judge"]})
    with pytest.raises(SecurityError):
        escape.turn("a", "argue", {})
    with pytest.raises(TemplateError, match="'nobody' is undefined"):
        pack(system={"a": "{{ nobody }}"}).opening("a", {})
