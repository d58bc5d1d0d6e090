"""``echorl environments check FILE``: which rows of a data set of software engineering can be trained on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from echorl_core.names import ExitCode


def environments_command(
    action: Annotated[Literal["check"], typer.Argument(help="What to do; check is all there is.")],
    file: Annotated[Path, typer.Argument(help="JSONL file of rows, or folder of tasks.")],
    *,
    args: Annotated[str, typer.Option(help="More arguments of builtin:swe, as a JSON object.")] = "{}",
    drops: Annotated[Path | None, typer.Option(help="Write keys of rows to leave out, for args.exclude.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Rows at the same time.")] = os.cpu_count() or 1,
    repeat: Annotated[int, typer.Option(min=1, help="How often each gold patch must be worth 1.")] = 1,
) -> None:
    """Try every row in sandboxes of this machine: its gold patch must be worth 1, and an empty patch 0.

    A line a row: ok, drop (with the reason: it cannot be read or prepared, its tests outlast their time, they fail with
    the gold patch, or pass without), or unknown (its sandboxes were lost twice).

    Exit code 0: every row is ok. 1: some are to be dropped. 2: the file, an argument or this machine will not do.
    4: some are unknown.
    """
    assert action == "check"  # noqa: S101 - typer accepts nothing else
    asked = {"args": {**_object(args), "data": str(file.absolute())}, "jobs": jobs, "repeat": repeat}
    asked["drops"] = None if drops is None else str(drops.absolute())
    program = [sys.executable, "-P", "-m", "echorl_orchestrator.environments.check"]
    done = subprocess.run(program, input=json.dumps(asked).encode(), check=False)
    raise typer.Exit(done.returncode)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        typer.echo(f"--args: found {text!r} ({error}), accepted is a JSON object", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from None
    if not isinstance(found, dict):
        typer.echo(f"--args: found {text!r}, accepted is a JSON object", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT)
    return found
