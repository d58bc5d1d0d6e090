"""What of a turn is aloud."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.episodes.multi_agent.reasoning import Reasoning

read = Reasoning().read
BOTH = Reasoning(["think", "reason"])


@pytest.mark.parametrize(
    ("text", "public", "flaw"),
    [
        ("plain", "plain", None),
        (" kept as it is ", " kept as it is ", None),
        ("<think>x</think> said", "said", None),
        ("before <think>x</think> after", "before  after", None),
        ("<think>x</think>", "", None),
        ("said <think>x", "said", "unclosed"),
        ("x</think>said", "said", "stray"),
        ("<think>x</think>said</think>more", "more", "stray"),
        ("<think>x<think>y</think>z</think>said", "said", "nested"),
        ("<think>x<think>y</think>z", "", "nested"),
        ("<think>x</think>said<think>y</think>", "said", "repeated"),
    ],
)
def test_readings(text: str, public: str, flaw: str | None) -> None:
    found = read(text)
    assert (found.public, found.flaw) == (public, flaw)


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    found = read("x</think>said", opened="think")
    assert (found.public, found.flaw) == ("said", None)
    assert read("x", opened="think").flaw == "unclosed"
    assert read("x</think><think>y</think>", opened="think").flaw == "repeated"


@given(st.lists(st.sampled_from(["<think>", "</think>", "s", "p"]), max_size=8), st.booleans())
def test_no_text_inside_any_pair_of_tags_is_public(parts: list[str], opened: bool) -> None:
    """Pieces of text are told apart by their place; one behind an opening tag that nothing closed is secret."""
    text = "".join(f"[{place}]" if part in "sp" else part for place, part in enumerate(parts))
    public = read(text, opened="think" if opened else None).public
    depth = int(opened)
    for place, part in enumerate(parts):
        depth = depth + 1 if part == "<think>" else max(0, depth - 1) if part == "</think>" else depth
        if part in "sp" and depth:
            assert f"[{place}]" not in public


@pytest.mark.parametrize(
    ("text", "public", "flaw"),
    [
        ("<reason>x</reason> said", "said", None),
        ("<reasons>x</reasons>", "<reasons>x</reasons>", None),
        ("<think>x</reason>y</think> said", "said", "crossed"),
        ("<think>x</reason> y", "", "crossed"),
        ("<think>x</think>said<reason>y</reason>", "said", "repeated"),
        ("x</reason>said", "said", "stray"),
    ],
)
def test_tags_by_choice(text: str, public: str, flaw: str | None) -> None:
    found = BOTH.read(text)
    assert (found.public, found.flaw) == (public, flaw)


def test_a_tag_that_is_not_chosen_is_speech() -> None:
    assert Reasoning(["reason"]).read("<think>x</think>").public == "<think>x</think>"
    assert read("<reason>x</reason>").public == "<reason>x</reason>"


@pytest.mark.parametrize("tag", ["think", "reason"])
def test_a_prompt_opens_the_tag_that_it_ends_with(tag: str) -> None:
    assert BOTH.opened_by(f"asked <{tag}>\n") == tag
    assert BOTH.opened_by(f"asked <{tag}> more") is None
    assert BOTH.prompt_end >= len(f"<{tag}>\n")
    assert BOTH.read(f"x</{tag}>said", opened=tag).public == "said"
