"""Processes of this machine, by whose they are."""

from pathlib import Path


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return parents


def children(parent: int) -> set[int]:
    """Those right below one."""
    return {number for number, above in _parents().items() if above == parent}


def descendants(parent: int) -> set[int]:
    """All below one."""
    parents, found = _parents(), {parent}
    while more := {number for number, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def alive(processes: set[int]) -> set[int]:
    """Those that run; a zombie does not."""

    def lives(number: int) -> bool:
        try:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return {number for number in processes if lives(number)}
