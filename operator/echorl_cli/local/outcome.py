"""How a supervised run ends, and what the supervisor tells a view on the way."""

import asyncio
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from echorl_core.attempts import Refused
from echorl_core.names import ExitCode, Phase
from echorl_core.wire.run_state import RunState


@dataclass(frozen=True)
class Outcome:
    """The end of ``echorl run``."""

    phase: Phase
    exit_code: int
    reason: str

    @classmethod
    def succeeded(cls) -> "Outcome":
        """All steps are trained."""
        return cls(Phase.SUCCEEDED, int(ExitCode.OK), "finished")

    @classmethod
    def stopped(cls) -> "Outcome":
        """The outcome of a run that was stopped on request, with nothing lost."""
        return cls(Phase.SUSPENDED, int(ExitCode.STOPPED), "stopped on request; the same command resumes")

    @classmethod
    def stopped_at_once(cls, number: int, why: str) -> "Outcome":
        """The outcome of a run that was stopped on request, without a last checkpoint."""
        reason = f"{why}, without a last checkpoint; the same command resumes from the newest one"
        return cls(Phase.SUSPENDED, 128 + number, reason)

    @classmethod
    def failed(cls, reason: str, exit_code: int = int(ExitCode.CRASH)) -> "Outcome":
        """The outcome of a run that failed for good."""
        return cls(Phase.FAILED, exit_code, reason)

    @classmethod
    def without_folder(cls, root: Path) -> "Outcome":
        """The outcome of a run whose folder was removed or replaced while it went on."""
        return cls.failed(f"{root}: the run's folder was removed or replaced while it went on")

    @classmethod
    def of_error(cls, error: BaseException) -> "Outcome":
        """What the failure of one of the supervisor's tasks means; one that is a bug of ours is raised."""
        if isinstance(error, Refused):
            return cls.failed(str(error), int(ExitCode.BAD_INPUT))
        if isinstance(error, OSError):
            return cls.failed(f"the supervisor cannot go on: {error}")
        raise error


@dataclass(frozen=True)
class Snapshot:
    """What a view shows of the run at one moment."""

    name: str
    phase: Phase
    reason: str
    attempt: int
    max_steps: int
    elapsed_s: float
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of restarts by cause."""
    state: RunState | None = None
    """The orchestrator's last ``GET /state``; None before the first."""


class View(Protocol):
    """Where people see the run."""

    def event(self, text: str) -> None:
        """Something happened; one sentence, or an excerpt of several lines."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show the run's present state."""
        ...


def asking_to_stop() -> list[signal.Signals]:
    """Signals that ask a run to stop; without those that whoever started it ignores, as ``nohup`` a terminal's end."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]


def ignore_stops(numbers: Iterable[signal.Signals]) -> None:
    """From now on these signals change nothing: the run has ended, and its exit code is written down.

    To be called on the event loop that handles them, before it is closed: that gives them their default effect.
    """
    numbers, loop = list(numbers), asyncio.get_running_loop()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def signal_name(number: int) -> str:
    """``SIGINT`` is what Ctrl-C sends."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
