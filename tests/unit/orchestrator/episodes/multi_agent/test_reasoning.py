"""What of a turn is aloud."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.episodes.multi_agent.reasoning import read


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
    found = read("x</think>said", opened=True)
    assert (found.public, found.flaw) == ("said", None)
    assert read("x", opened=True).flaw == "unclosed"
    assert read("x</think><think>y</think>", opened=True).flaw == "repeated"


@given(st.lists(st.sampled_from(["<think>", "</think>", "s", "p"]), max_size=8), st.booleans())
def test_no_text_inside_any_pair_of_tags_is_public(parts: list[str], opened: bool) -> None:
    """Pieces of text are told apart by their place; one behind an opening tag that nothing closed is secret."""
    text = "".join(f"[{place}]" if part in "sp" else part for place, part in enumerate(parts))
    public = read(text, opened=opened).public
    depth = int(opened)
    for place, part in enumerate(parts):
        depth = depth + 1 if part == "<think>" else max(0, depth - 1) if part == "</think>" else depth
        if part in "sp" and depth:
            assert f"[{place}]" not in public
