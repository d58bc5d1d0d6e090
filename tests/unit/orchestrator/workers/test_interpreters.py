import sys
from pathlib import Path

import pytest

from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.workers.interpreters import ENV_VERIFIERS_PYTHON, interpreter


def test_workers_of_verifiers_run_in_what_is_named_then_in_what_lies_beside_then_here(tmp_path: Path) -> None:
    prefix, named = str(tmp_path / "environment"), tmp_path / "named"
    assert interpreter("verifiers:sums", {}, prefix) == sys.executable
    beside = tmp_path / "environment-verifiers" / "bin" / "python"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert interpreter("verifiers:sums", {}, prefix) == str(beside)
    named.touch()
    assert interpreter("verifiers:sums", {ENV_VERIFIERS_PYTHON: str(named)}, prefix) == str(named)
    assert interpreter("builtin:digits", {ENV_VERIFIERS_PYTHON: str(named)}, prefix) == sys.executable


def test_a_named_interpreter_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInputError, match=r"\$ECHORL_VERIFIERS_PYTHON: found no file /absent/python, accepted is"):
        interpreter("verifiers:sums", {ENV_VERIFIERS_PYTHON: "/absent/python"})
