"""Checks a data set of ``builtin:swe`` in sandboxes of this machine: a process of ``echorl environments check``.

It is told what to do on standard input, as JSON, and documented with that command, its output and exit codes too.
"""

import asyncio
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from echorl_core.names import ExitCode
from echorl_core.rundir import write_file
from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.gold import Checked, check
from echorl_orchestrator.environments.builtin.parts.swe.reading import DataSet
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLimits
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes, default_folder


class Asked(BaseModel):
    """What is checked, and how."""

    model_config = ConfigDict(extra="forbid")

    args: dict[str, Any]
    jobs: int
    repeat: int
    episode_timeout_s: float
    """Of the run that will play the rows: deadlines follow from it."""
    limits: SandboxLimits
    """What one sandbox may use."""
    drops: Path | None = None
    """Where keys of rows to leave out are written to, one a line, as ``args.exclude`` reads them."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _read(found: dict[str, Any]) -> tuple[SweArgs, DataSet]:
    """Raises BadInputError: the arguments are wrong, or the data set is not there."""
    try:
        args = SweArgs.model_validate(found)
    except ValidationError as error:
        told = (f"args.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))
        raise BadInputError("\n".join(told)) from None
    data = DataSet(args.rows()) if args.data is None else args.data_set()
    if not data.rows and not data.refused:
        raise BadInputError(f"args.data: found no row in {args.data}")
    return args, data


async def _checked(asked: Asked, args: SweArgs, times: StageTimes, data: DataSet) -> list[Checked]:
    """All rows that can be read, told as they are done."""
    sandboxes = ProcessSandboxes(default_folder(), limits=asked.limits)
    room = asyncio.Semaphore(asked.jobs)

    async def one(row: Any) -> Checked:
        async with room:
            found = await check(row, args, times, sandboxes, repeat=asked.repeat)
        _say(f"{found.say} {found.key}{': ' if found.why else ''}{found.why}")
        return found

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(row)) for row in data.rows]
    finally:
        await sandboxes.close()
    return [task.result() for task in tasks]


def _run(asked: Asked) -> ExitCode:
    args, data = _read(asked.args)
    times = args.times(asked.episode_timeout_s)
    for line in data.refused:
        _say(f"drop {line}")
    found = asyncio.run(_checked(asked, args, times, data))
    drops = [*data.refused_keys, *(one.key for one in found if one.say == "drop")]
    if asked.drops is not None:
        write_file(asked.drops, "".join(f"{key}\n" for key in drops).encode("utf-8", "surrogateescape"))
    bad, unknown = len(data.refused) + len(drops) - len(data.refused_keys), sum(one.say == "unknown" for one in found)
    rows = len(data.rows) + len(data.refused)
    _say(f"{rows} rows: {rows - bad - unknown} ok, {bad} to drop, {unknown} unknown")
    if unknown:
        return ExitCode.ENVIRONMENT
    return ExitCode.CRASH if bad else ExitCode.OK


def main() -> int:
    """Check what standard input asks for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name may be of bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(Asked.model_validate(json.load(sys.stdin)))
    except (BadInputError, SandboxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
