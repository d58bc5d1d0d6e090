"""A row's set-up, the same in every sandbox of it: files, commands, baseline; for an agent a work tree of its own."""

from dataclasses import dataclass

from echorl_orchestrator.environments.builtin.parts.swe import repository
from echorl_orchestrator.environments.builtin.parts.swe.box import CALL_S, HARNESS, Box
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.sandboxes.contract import Command

STATEMENT = f"{HARNESS}/statement.md"
_SETUP = f"{HARNESS}/setup.sh"
_BY_A_SHELL = f"""
cd "$1" || exit 1
if command -v bash > /dev/null; then exec bash -e {_SETUP}; else exec sh -e {_SETUP}; fi
"""


@dataclass(frozen=True)
class Prepared:
    """A sandbox that is ready."""

    base: str
    """Name of the baseline's commit; the same in every sandbox where the set-up does the same."""


async def prepare(box: Box, row: Row, *, agent: bool, seconds: float) -> Prepared:
    """Prepare a clean sandbox for ``row``.

    Args:
        box: the sandbox.
        row: its row.
        agent: for an agent, who gets the work tree without its history, and the statement, which is written last; or
            for a grader.
        seconds: for the set-up, and again for the baseline.

    Raises:
        HarnessError: the row cannot be prepared.
    """
    for path, data in row.files.items():
        await box.put(f"{row.workdir}/{path}", data, mode=0o755 if data.startswith(b"#!") else 0o644)
    if row.setup:
        await box.put(_SETUP, "\n".join(row.setup).encode() + b"\n")
        ran = await box.shell(_BY_A_SHELL, row.workdir, seconds=seconds)
        if not ran.well:
            box.failed("setup", ran.told())
    owner = await _owner(box) if agent else ""
    base = await repository.record_baseline(box, row.workdir, row.base_commit, owner, seconds=seconds)
    if agent:
        if not (await box.run(Command(["/bin/sh", "-c", "test -w ."], workdir=row.workdir), CALL_S)).well:
            box.failed("setup", f"agents cannot write to {row.workdir}")
        await box.put(STATEMENT, row.statement.encode())
    return Prepared(base)


async def _owner(box: Box) -> str:
    """Of agents' processes, as ``uid:gid``."""
    ran = await box.run(Command(["/bin/sh", "-c", 'echo "$(id -u):$(id -g)"']), CALL_S)
    if not ran.well:
        box.failed("setup", ran.told())
    return ran.output.strip().splitlines()[-1]
