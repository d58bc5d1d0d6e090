"""What is written as YAML reads back as the same, whatever the text holds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_cli.yaml_text import parse_yaml, to_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(VALUES)
def test_what_is_written_reads_back(value: Any) -> None:
    assert parse_yaml(to_yaml(value)) == value


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", " \u2029", "\ufeff", "\x85"])
def test_text_that_ends_lines_elsewhere(text: str) -> None:
    assert parse_yaml(to_yaml({text: [text]})) == {text: [text]}


@pytest.mark.parametrize("text", ["0E0", "1e5", "-3", "1.5", ".inf", "1_0", "0x1f", "true", "null"])
def test_text_that_looks_like_a_number_or_a_word_of_yaml(text: str) -> None:
    assert parse_yaml(to_yaml({text: [text]})) == {text: [text]}


def test_text_stays_readable() -> None:
    assert to_yaml({"größe": "中"}) == "größe: 中\n"
