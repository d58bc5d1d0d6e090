"""Try all cases, and print a table of commands; see the package's docstring."""

import argparse
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess

from benchmarks.bad_inputs.case import Case
from benchmarks.bad_inputs.table import cases
from benchmarks.bad_inputs.trial import Trial, attempt
from echorl_cli.__main__ import COMMANDS

_CLOCK_S = 60.0
"""By the clock: a case that waits uses no CPU."""


def _serve(requests: Connection, all_cases: list[Case]) -> None:
    while True:
        requests.send(attempt(all_cases[requests.recv()]))


class Worker:
    """A process that tries one case after the other, and is replaced when one keeps it."""

    def __init__(self, context: ForkContext, all_cases: list[Case]) -> None:
        self._context, self._cases = context, all_cases
        self._process: ForkProcess | None = None

    def attempt(self, index: int) -> Trial:
        """What became of a case; a hang where it did not end."""
        if self._process is None:
            self._ours, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(theirs, self._cases), daemon=True)
            self._process.start()
            theirs.close()
        self._ours.send(index)
        fault = "hang"
        if self._ours.poll(_CLOCK_S):
            try:
                trial: Trial = self._ours.recv()
            except EOFError:
                fault = "traceback"
            else:
                return trial
        self.close()
        return Trial(self._cases[index].name, fault, "its process was ended", _CLOCK_S)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def trials(wanted: str) -> Iterator[Trial]:
    """Every case whose name contains ``wanted``, one after the other in one process."""
    chosen = [case for case in cases() if wanted in case.name]
    worker = Worker(multiprocessing.get_context("fork"), chosen)
    try:
        for index in range(len(chosen)):
            yield worker.attempt(index)
    finally:
        worker.close()


def main() -> int:
    """0 if no case ended in a traceback, a hang or silence."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bad_inputs", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    slowest: dict[str, float] = defaultdict(float)
    for trial in trials(options.only):
        command = trial.name.split()[0].rstrip(":")
        command = command if command in COMMANDS else "no command"
        counts[command].update(("cases", trial.fault or "fine"))
        slowest[command] = max(slowest[command], trial.seconds)
        if trial.fault:
            print(f"{trial.fault}: {trial.name!r} ({trial.seconds:.1f} s)\n{trial.words}\n", file=sys.stderr)
    print("| command | cases | tracebacks | hangs | silent | slowest, CPU-s |\n|---|---|---|---|---|---|")
    for command, found in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        row = [found["cases"], found["traceback"], found["hang"], found["silent"]]
        longest = slowest.get(command, max(slowest.values(), default=0.0))
        print(f"| {command} | {' | '.join(map(str, row))} | {longest:.1f} |")
    return 1 if any(found["cases"] != found["fine"] for found in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
