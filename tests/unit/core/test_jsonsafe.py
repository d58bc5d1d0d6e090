import json
import math
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from echorl_core import jsonsafe

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def refuse(token: str) -> None:
    raise AssertionError(token)


@given(values)
def test_output_never_holds_a_non_finite_number(value: object) -> None:
    json.loads(jsonsafe.dumps(value), parse_constant=refuse)


def test_replacements_are_counted() -> None:
    before = jsonsafe.replaced_count()
    assert jsonsafe.finite({"a": [math.nan, 1.0, -math.inf]}) == {"a": [None, 1.0, None]}
    assert jsonsafe.replaced_count() == before + 2


def test_output_is_text_that_utf8_holds() -> None:
    written = jsonsafe.dumps({"half": "a\ud83d", "pair": "\ud83d\ude00", "plain": "é"})
    assert json.loads(written.encode()) == {"half": "a\ufffd", "pair": "\U0001f600", "plain": "é"}


def test_what_json_has_no_form_for_is_written_as_text() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    written = jsonsafe.dumps({"raw": b"a", "at": noon, (1, 2): 3, 4: None})
    assert json.loads(written) == {"raw": "b'a'", "at": "2026-01-31 12:00:00+00:00", "(1, 2)": 3, "4": None}


def test_what_is_nested_too_deep_is_left_out_and_the_rest_is_written():
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    told = json.loads(jsonsafe.dumps({"deep": deep, "beside": 1}))
    assert told["beside"] == 1
    levels, found = 0, told["deep"]
    while isinstance(found, list):
        levels, found = levels + 1, found[0]
    assert (levels, found) == (jsonsafe.MAX_DEPTH - 1, "... (nested too deep)")
