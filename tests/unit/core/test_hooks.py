"""Import paths of users' functions."""

import math
from pathlib import Path

import pytest

from echorl_core.hooks import HookImportError, imported, told


def test_an_object_and_an_attribute_of_one() -> None:
    assert imported("math:tau") is math.tau
    assert imported("pathlib:Path.home") == Path.home


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("math", "found 'math', accepted is 'pkg.module:name'"),
        (":tau", "found ':tau', accepted is 'pkg.module:name'"),
        ("math:", "found 'math:', accepted is 'pkg.module:name'"),
        ("math:absent", "module 'math' has no 'absent'"),
        ("pathlib:Path.absent", "module 'pathlib' has no 'Path.absent'"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, text: str) -> None:
    with pytest.raises(HookImportError) as caught:
        imported(path)
    assert str(caught.value) == text


def test_what_a_module_raises_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "raises_at_import.py"
    file.write_text("a = 1\nb = a / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HookImportError, match=r"'raises_at_import:b' does not import: ZeroDivisionError: .*py:2\)"):
        imported("raises_at_import:b")


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert told(ValueError("odd")) == "ValueError: odd"
