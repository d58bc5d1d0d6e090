import os
import signal
import subprocess
import sys

from echorl_cli.local import tethered


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", tethered.__file__, str(int(signal.SIGKILL)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_takes_the_process_over() -> None:
    done = run(str(os.getpid()), sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(3)", "word")
    assert (done.stdout, done.returncode) == ("word\n", 3)


def test_a_process_whose_parent_is_gone_starts_nothing() -> None:
    done = run("1", sys.executable, "-c", "print('started')")
    assert (done.stdout, done.returncode) == ("", 1)


def test_a_missing_command_is_named() -> None:
    done = run(str(os.getpid()), "/nowhere/python")
    assert done.returncode == 1
    assert "/nowhere/python: No such file or directory" in done.stderr
