"""Roles as shell scripts: each tells that it is there, and ends as it is told, with whatever code or signal."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echorl_cli.local.proctable import is_alive, stat_of

_ROLE = r"""
name="$1"
test "$name" = trainer && name="trainer-$RANK"
me="$SCRIPTED_ROLES/$name.$$"
mkfifo "$me.ask"
case $(($$ % 4)) in
  0) trap '' TERM; sleep 300 & kid=$! ;;
  1) setsid sleep 300 & kid=$! ;;
  2) sleep 300 & kid=$! ;;
  *) kid=0 ;;
esac
printf '%s %s %s' "$ECHORL_ATTEMPT" "$ECHORL_RUN_UID" "$kid" > "$me.tmp"
mv "$me.tmp" "$me.about"
read code < "$me.ask"
case $code in -*) kill "$code" $$; code=1 ;; esac
exit "$code"
"""


class ScriptedCommands:
    """Command lines of the scripts; they find their folder in ``SCRIPTED_ROLES``."""

    def inference(self, config: Path, work: Path) -> Sequence[str]:
        """An engine."""
        return self._script(config.stem)

    def orchestrator(self, config: Path) -> Sequence[str]:
        """The orchestrator."""
        return self._script("orchestrator-0")

    def trainer(self, config: Path) -> Sequence[str]:
        """A rank, which knows its number itself."""
        return self._script("trainer")

    def _script(self, name: str) -> Sequence[str]:
        return ["/bin/sh", "-c", _ROLE, "sh", name]


@dataclass(eq=False)
class Launch:
    """One process of a role."""

    name: str
    pid: int
    started: int
    attempt: int
    uid: str
    kid: int
    ask: Path
    told: int | None = None
    """The code that it was told to end with."""
    sick: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return is_alive(self.pid, self.started)

    def end(self, code: int) -> None:
        """Tell it to end, once; without effect on one that has ended."""
        if self.told is not None:
            return
        try:
            with os.fdopen(os.open(self.ask, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as pipe:
                pipe.write(f"{code}\n".encode())
        except OSError:  # it does not listen yet, or no longer
            return
        self.told = code


def launches(folder: Path, known: set[Path]) -> list[Launch]:
    """Processes that have come since, oldest first; ``known`` takes their files."""
    found = []
    for path in sorted(set(folder.glob("*.about")) - known, key=lambda path: path.stat().st_mtime_ns):
        known.add(path)
        name, pid = path.stem.split(".")
        attempt, uid, kid = path.read_text().split()
        stat = stat_of(int(pid))
        started = 0 if stat is None else stat.started
        found.append(Launch(name, int(pid), started, int(attempt), uid, int(kid), path.with_suffix(".ask")))
    return found
