"""Living processes of one run, found from outside: by a variable that they inherit, and by the supervisor's notes."""

import json
from pathlib import Path

from echorl_cli.local.proctable import Stat, stat_of

MARK = "ECHORL_TEST_RUN"
"""Every process of a run inherits this variable, with a value of the run's own."""


def marked(mark: str) -> list[Stat]:
    """Processes that inherited ``mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or (stat := stat_of(int(entry.name))) is None:
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ.split(b"\0"):
            found.append(stat)
    return found


def noted(root: Path) -> list[Stat]:
    """Processes that the supervisor recorded in a run directory, and the members of their sessions."""
    try:
        notes = json.loads((root / ".processes.json").read_text())["processes"]
    except FileNotFoundError:
        return []
    known = {int(pid): started for pid, started in notes.items()}
    stats = [stat_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    alive = [stat for stat in stats if stat is not None]
    return [stat for stat in alive if known.get(stat.pid) == stat.started or stat.session in known]


def roles_of(stats: list[Stat]) -> dict[str, int]:
    """Process ids of those that lead a role, by role and index (``trainer-0``)."""
    found = {}
    for stat in stats:
        try:
            environ = Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mark = next((entry for entry in environ if entry.startswith(b"ECHORL_PROCESS=")), None)
        if mark is not None and stat.session == stat.pid:
            found[mark.decode().split(".")[1]] = stat.pid
    return found
