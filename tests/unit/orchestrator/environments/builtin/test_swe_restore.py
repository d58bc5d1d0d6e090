"""What is put back before the tests run."""

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.repository import to_restore


@pytest.mark.parametrize(
    ("changed", "tests", "allowed", "restored"),
    [
        (["src/a.py"], ["tests/test_a.py"], [], ["tests/test_a.py"]),
        (["src/conftest.py", "pytest.ini"], [], [], ["pytest.ini", "src/conftest.py"]),
        (["setup.cfg", "tox.ini"], [], ["setup.cfg"], ["tox.ini"]),
        (["my_conftest.py", "conftest.pyc"], [], [], []),
        (["tests"], ["tests/unit/test_a.py"], [], ["tests", "tests/unit/test_a.py"]),
        (["tests/unit"], ["tests/unit/test_a.py"], [], ["tests/unit", "tests/unit/test_a.py"]),
        (["tests/other.py"], ["tests/test_a.py"], [], ["tests/test_a.py"]),
    ],
    ids=["tests", "settings", "settings that the fix needs", "names alike", "a folder", "a folder within", "siblings"],
)
def test_tests_and_their_settings_are_put_back(
    changed: list[str], tests: list[str], allowed: list[str], restored: list[str]
) -> None:
    assert to_restore(changed, tests, allowed) == restored
