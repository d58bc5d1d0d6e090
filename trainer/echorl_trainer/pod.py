"""The trainer ranks of one pod: ``python -m echorl_trainer.pod --config trainer.json``, process 1 of its container.

    pod --starts--> python -m echorl_trainer --config ..., one process a rank
        <--exit code, termination message-- each

It starts the ranks, passes SIGTERM on (as SIGUSR1 where it is a notice), reaps every child that the kernel hands it,
ends all ranks when one has failed, and ends itself with the code, and the termination message, of the rank that says
most about the cause. It starts a single rank too, rather than becoming it: a rank that is killed by a signal cannot say
so itself.

Where ranks copy their state to memory that this process keeps for them (memory.py), it starts all of them again
instead, in the same attempt, after an end that a new attempt could mend, within ``failurePolicy.maxRestarts``. All pods
of the gang do so together (in_place.py), and its first one decides. Where they hold copies for each other (mirror.py) a
pod may take the place of one that is lost.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import structlog

from echorl_core import __version__, logs, names, termination_message
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode, Role
from echorl_core.notices import time_for_work_s
from echorl_core.termination_message import TerminationMessage, code_name, message_of_end
from echorl_core.wire.in_place import Verdict
from echorl_trainer.child_ends import ChildEnds
from echorl_trainer.in_place import InPlace
from echorl_trainer.in_place_http import restarts_in_place
from echorl_trainer.mirror import Unreachable
from echorl_trainer.pod_layout import Layout
from echorl_trainer.rank_ends import End, telling

log = structlog.get_logger()

TERMINATED = 128 + signal.SIGTERM
SETTLE_S = 1.0
"""After a rank has failed, for its peers to fail of the same cause: a NaN's code often comes after a crash's."""
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL. A rank ends at once unless it hangs in a driver."""
LAST_WORDS_S = 2.0
"""Seconds that a rank has for its end when its time after a notice is over."""
_LOOK_S = 0.1
"""Between two looks at whether the pod was told to end, before ranks start again in place."""


@dataclass
class Pod:
    """The ranks, from their start to the last one's end."""

    layout: Layout
    command: Sequence[str]
    """Command line of a rank; the first word is a path."""
    words: Path | None
    """Folder for the ranks' termination messages; None if nobody reads them."""
    settle_s: float = SETTLE_S
    grace_s: float = GRACE_S
    notice_s: float | None = None
    """Seconds that ranks may work on after SIGTERM, which is a notice then; None: they end at once."""
    in_place: InPlace | None = None
    """None: the first rank that fails ends the pod."""
    ends: list[End] = field(default_factory=list)
    """Since the ranks were started last."""
    _alive: dict[int, int] = field(default_factory=dict)
    """Rank by process id."""
    _ending: bool = False
    _told: bool = False
    """It was sent a signal to end."""
    _noticed: bool = False
    """It was given notice, and that is why it ends."""
    _given_up: bool = False
    """A rank was lost after the notice."""
    _for_others: bool = False
    """The ranks end, or ended, since one of another pod had failed."""
    _killing: bool = False

    def run(self) -> int:
        """Start the ranks and wait until all have ended, as often as they start in place; the pod's exit code."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGUSR2, self._on_failed_elsewhere)
        children = ChildEnds()
        if self._takes_place():
            self._for_others = True
        else:
            self._run_ranks(children)
        while (verdict := self._verdict()) is not None:
            log.warning("ranks start again in place", reason=verdict.reason, delay_s=verdict.delay_s)
            self.ends, self._ending, self._for_others = [], False, False
            until = time.monotonic() + verdict.delay_s
            while not self._told and time.monotonic() < until:
                time.sleep(_LOOK_S)
            self._run_ranks(children)
        if self.in_place is not None:
            self.in_place.close()
        return self._code()

    def _takes_place(self) -> bool:
        """Whether the ranks start with those of all other pods, since this one takes the place of a lost one."""
        try:
            return self.in_place is not None and self.in_place.takes_place(lambda: self._told)
        except Unreachable as error:
            # Their ranks would not meet either; they say so, and how long they waited.
            log.warning("the gang's first pod does not answer", error=str(error))
            return False

    def _verdict(self) -> Verdict | None:
        """The restart in place that follows, if one does."""
        return None if self.in_place is None else self.in_place.decide(self.ends, lambda: self._told)

    def _run_ranks(self, children: ChildEnds) -> None:
        if self.in_place is not None and self.layout.pods > 1:
            self.in_place.watch(lambda: signal.raise_signal(signal.SIGUSR2))
        for local in range(self.layout.ranks_per_pod):
            if not self._ending:
                self._start(local)
        while self._alive:
            # A handler that runs meanwhile does not end the wait.
            pid, status = children.wait()
            if (rank := self._alive.pop(pid, None)) is not None:
                self._ended(rank, os.waitstatus_to_exitcode(status))
        signal.setitimer(signal.ITIMER_REAL, 0)

    def termination_message(self, identity: RunIdentity) -> TerminationMessage:
        """What the pod has to say at its end."""
        end = telling(self.ends)
        if end is None:
            if self._code() == ExitCode.NOTICE:
                return self._words_of_notice(identity)
            texts = {TERMINATED: "terminated", ExitCode.CRASH: "a rank of another pod had failed"}
            text = texts.get(self._code(), f"{len(self.ends)} ranks finished")
            steps = [said.step for one in self.ends if (said := self._said(one.rank)) is not None]
            step = max((step for step in steps if step is not None), default=None)
            return message_of_end(Role.TRAINER, self._code(), text, attempt=identity.attempt, step=step)
        said = self._said(end.rank)
        if said is not None and said.exit_code == end.code:
            return msgspec.structs.replace(said, rank=end.rank)
        name = code_name(end.code)
        how = f"was ended by {name}" if end.status < 0 else f"ended with code {end.code} ({name})"
        text = f"rank {end.rank} {how} without a word"
        return message_of_end(Role.TRAINER, end.code, text, attempt=identity.attempt, rank=end.rank)

    def _code(self) -> int:
        end = telling(self.ends)
        if end is not None:
            return end.code
        failed = any(one.code != ExitCode.OK for one in self.ends) or len(self.ends) < self.layout.ranks_per_pod
        if not failed:
            return ExitCode.OK
        if self._for_others and not self._told:
            return ExitCode.CRASH  # as a peer's broken connection gives
        return ExitCode.NOTICE if self._noticed else TERMINATED

    def _words_of_notice(self, identity: RunIdentity) -> TerminationMessage:
        said = (self._said(end.rank) for end in self.ends if end.code == ExitCode.NOTICE)
        words = next((one for one in said if one is not None), None)
        return words or message_of_end(Role.TRAINER, ExitCode.NOTICE, "given notice", attempt=identity.attempt)

    def _start(self, local: int) -> None:
        rank = self.layout.rank(local)
        environment = {**os.environ, **self.layout.environment(local)}
        if self.words is not None:
            environment[names.ENV_TERMINATION_LOG] = str(self._words_file(rank))
            self._words_file(rank).unlink(missing_ok=True)  # of the process before
        if self.in_place is not None:
            environment |= self.in_place.environment(rank)
        # A session of its own, so that a rank can be ended with all that it started. The mask is cleared: a signal
        # that is blocked here would be blocked there for ever.
        pid = os.posix_spawn(self.command[0], list(self.command), environment, setsid=True, setsigmask=[])
        self._alive[pid] = rank
        log.info("rank started", rank=rank, pid=pid)
        if self._ending:
            # The signal came while this rank was being made: there is nothing to save.
            self._signal(signal.SIGTERM)

    def _ended(self, rank: int, status: int) -> None:
        end = End(rank, status, asked=self._ending)
        self.ends.append(end)
        log.info("rank ended", rank=rank, code=end.code, meaning=code_name(end.code))
        if end.code != ExitCode.OK and not self._ending and self._alive:
            signal.setitimer(signal.ITIMER_REAL, self.settle_s)
        elif self._noticed and not self._given_up and end.code not in (ExitCode.OK, ExitCode.NOTICE):
            # Without it its peers cannot save. One that made no progress before says so by ending as on SIGTERM.
            self._given_up, self._noticed = True, end.code != TERMINATED
            self._signal(signal.SIGTERM)

    def _on_sigterm(self, number: int, _: FrameType | None) -> None:
        self._told = True
        if self.notice_s is None or self._ending or (self.in_place is not None and self.in_place.is_replaced):
            self._end_all()
            return
        self._ending = self._noticed = True
        signal.setitimer(signal.ITIMER_REAL, self.notice_s + LAST_WORDS_S)
        self._signal(signal.SIGUSR1)

    def _on_failed_elsewhere(self, number: int, _: FrameType | None) -> None:
        if self._alive and not self._ending and self.in_place is not None and self.in_place.failed_elsewhere:
            self._for_others = True
            signal.setitimer(signal.ITIMER_REAL, self.settle_s)

    def _on_alarm(self, number: int, _: FrameType | None) -> None:
        if self._ending:
            self._signal(signal.SIGKILL)
        else:
            self._end_all()

    def _end_all(self) -> None:
        if not self._ending:
            self._ending = True
            signal.setitimer(signal.ITIMER_REAL, self.grace_s)
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for pid in list(self._alive):
            try:
                # What a rank started may be asked to end by the rank alone; killed it is with it.
                (os.killpg if number is signal.SIGKILL else os.kill)(pid, number)
            except ProcessLookupError:
                continue

    def _words_file(self, rank: int) -> Path:
        return (self.words or Path()) / f"rank_{rank}.json"

    def _said(self, rank: int) -> TerminationMessage | None:
        try:
            return termination_message.read(self._words_file(rank).read_bytes())
        except OSError:
            return None


def main(arguments: Sequence[str]) -> int:
    """Run the pod's ranks; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m echorl_trainer.pod", description="The trainer ranks of one pod.")
    parser.add_argument("--config", type=Path, required=True, help="the trainer's config as JSON")
    parser.add_argument("--version", action="version", version=__version__)
    config = parser.parse_args(arguments).config
    try:
        identity = RunIdentity.from_environment(os.environ)
        layout = Layout.from_environment(os.environ)
        notice_s = time_for_work_s(os.environ)
        in_place = (
            None
            if layout.is_spare
            else restarts_in_place(config, os.environ, identity, pods=layout.pods, pod=layout.index, ranks=layout.ranks)
        )
    except (OSError, ValueError) as error:
        problem = ExitCode.BAD_INPUT if isinstance(error, ValueError) else ExitCode.CRASH
        logs.configure(Role.TRAINER, attempt=0)
        log.error("the trainer's pod cannot start", error=str(error))
        termination_message.write(message_of_end(Role.TRAINER, problem, str(error)))
        return problem
    logs.configure(Role.TRAINER, attempt=identity.attempt)
    if layout.is_spare:
        return _hold_place(layout)
    # -P: the working folder may hold modules of any name.
    command = [sys.executable, "-P", "-m", "echorl_trainer", "--config", str(config)]
    with tempfile.TemporaryDirectory(prefix="echorl-words-", ignore_cleanup_errors=True) as folder:
        words = Path(folder) if names.ENV_TERMINATION_LOG in os.environ else None
        pod = Pod(layout, command, words, notice_s=notice_s, in_place=in_place)
        code = pod.run()
        said = pod.termination_message(identity)
    termination_message.write(said)
    log.info("the pod ends", code=code, meaning=code_name(code), message=said.message)
    return code


def _hold_place(layout: Layout) -> int:
    """Wait to be told to end, on a node that the gang will grow to."""
    ends = (signal.SIGTERM, signal.SIGINT)
    # What waits for a signal takes it only if it is blocked; process 1 would not be ended by it either.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    log.info("holding a place until the gang grows", index=layout.index, pods=layout.pods)
    signal.sigwait(ends)
    return ExitCode.OK


def run() -> NoReturn:
    """Command line."""
    code = main(sys.argv[1:])
    logging.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    run()
