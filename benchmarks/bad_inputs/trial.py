"""One case tried: what the command said, how it ended, how long it took."""

import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner, Result

from benchmarks.bad_inputs.case import Case
from echorl_cli.__main__ import app_for

DEADLINE_S = 10.0
"""CPU seconds of one case; other work on the machine is no hang."""


@dataclass(frozen=True)
class Trial:
    """What became of a case."""

    name: str
    fault: str
    """"traceback", "hang", "silent" (refused without a word); empty: none."""
    words: str
    """What tells the fault."""
    seconds: float
    """Of CPU."""
    exit_code: int | None = None


def attempt(case: Case) -> Trial:
    """Try a case in this process, in a folder of its own."""
    with _alone() as folder:
        arguments = case.arguments(folder)
        begun = time.process_time()
        with _said_by_processes() as said:
            result = CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")
        seconds = time.process_time() - begun
        return judged(case.name, result, seconds, said.read_text(errors="replace"))


def judged(name: str, result: Result, seconds: float, said_by_processes: str = "") -> Trial:
    """Whether a call ended as one with bad input may; processes that it started speak for it too."""
    said = result.output + said_by_processes
    fault, words = "", said[-2000:]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        fault, words = "traceback", "".join(traceback.format_exception(result.exception))
    elif "Traceback" in said:
        fault = "traceback"
    elif seconds > DEADLINE_S:
        fault = "hang"
    elif result.exit_code != 0 and not said.strip():
        fault, words = "silent", f"exit code {result.exit_code}"
    return Trial(name, fault, words, seconds, result.exit_code)


@contextmanager
def _said_by_processes() -> Iterator[Path]:
    """A file that what other processes say to our own streams is in, once this is left."""
    path = Path("said by processes")
    kept = [os.dup(stream) for stream in (1, 2)]
    try:
        with path.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        yield path
    finally:
        for stream, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, stream)
            os.close(handle)


@contextmanager
def _alone() -> Iterator[Path]:
    before, variables = Path.cwd(), dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="echorl-bad-inputs-"))
    os.environ |= {"HOME": str(folder), "HF_HOME": str(folder), "TERM": "dumb"}
    os.environ.pop("KUBECONFIG", None)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(variables)
        shutil.rmtree(folder, ignore_errors=True)
