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
