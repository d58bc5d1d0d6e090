"""A process ends with its exit code, whoever still listens to it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from echorl_trainer.ending import end
if sys.stdout is not None:
    sys.stdout.write("something")
end(7)
"""


@pytest.mark.parametrize("redirect", ["", ">&-", "> /dev/full", "2>&-", "2> /dev/full"])
def test_the_exit_code_is_that_which_was_given(redirect):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    program = ["bash", "-c", f'"$0" -c "$1" {redirect}', sys.executable, PROGRAM]
    done = subprocess.run(program, check=False, capture_output=True, timeout=60, env=buffered)
    assert done.returncode == 7
    assert done.stdout == (b"" if redirect.startswith(">") else b"something")
