"""``.processes.json``: what a supervisor started, for the one that comes after it was killed."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from echorl_cli.local import proctable
from echorl_cli.local.proctable import Stat
from echorl_core.rundir import write_file

_NAME = ".processes.json"


@dataclass(frozen=True)
class Notes:
    """One supervisor's processes."""

    mark: str
    boot: str
    """Boot of the machine in which the start times were read."""
    processes: dict[int, int]
    """Start times by pid."""
    shared_memory: list[str]


@dataclass(frozen=True)
class Leftovers:
    """What a killed supervisor had left."""

    ended: list[Stat]
    residual: list[Stat]
    """Could not be ended."""
    shared_memory: list[Path]
    """Removed segments."""


def write_notes(root: Path, notes: Notes) -> None:
    """Replace the notes."""
    write_file(root / _NAME, json.dumps(asdict(notes)).encode())


def forget(root: Path) -> None:
    """Remove the notes: nothing is left."""
    (root / _NAME).unlink(missing_ok=True)


def end_leftovers(root: Path, *, grace_s: float) -> Leftovers | None:
    """End the processes that ``.processes.json`` names; blocks. None if there are no notes.

    A process counts only if its start time or its mark is the noted one; nothing does after a reboot.
    """
    try:
        found = json.loads((root / _NAME).read_text())
        processes = {int(pid): int(started) for pid, started in found["processes"].items()}
        mark, boot, segments = f"{found['mark']}.", found["boot"], [Path(name) for name in found["shared_memory"]]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        forget(root)
        return Leftovers([], [], [])
    if boot != proctable.boot_id():
        forget(root)
        return Leftovers([], [], [])
    ended = proctable.end_all(mark, processes, grace_s=grace_s, strict=True)
    residual = proctable.ours(mark, processes, strict=True)
    removed = proctable.remove_unused(segments)
    if not residual:
        forget(root)
    return Leftovers(ended, residual, removed)
