"""CPU time and memory of processes, from /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time so far; 0 for a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory now (``VmRSS``) or at most so far (``VmHWM``), in MB of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status: no {field}")


def mapped(pid: int) -> set[str]:
    """Files that a process has mapped: its shared libraries."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.count("/") > 0 and len(line.split(maxsplit=5)) == 6}
