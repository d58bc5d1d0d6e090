"""``echorl environments check FILE``: which rows of a data set of software engineering can be trained on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from pydantic import ValidationError

from echorl_cli.folders import named_path
from echorl_cli.output_path import OutputRefused, check_output_file
from echorl_core.names import ExitCode
from echorl_manifest.models.base import duration_seconds, quantity_number
from echorl_manifest.models.environments import Environment
from echorl_manifest.models.sandboxes import SandboxResources
from echorl_manifest.problems import field_problems

_EPISODE_TIMEOUT = Environment.model_fields["episode_timeout"].default


def environments_command(
    action: Annotated[Literal["check"], typer.Argument(help="What to do; check is all there is.")],
    file: Annotated[Path, typer.Argument(parser=named_path, help="JSONL file of rows, or folder of tasks.")],
    *,
    args: Annotated[str, typer.Option(help="More arguments of builtin:swe, as a JSON object.")] = "{}",
    drops: Annotated[
        Path | None, typer.Option(parser=named_path, help="Write keys of rows to leave out, for args.exclude.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Rows at the same time.")] = os.cpu_count() or 1,
    repeat: Annotated[int, typer.Option(min=1, help="How often each gold patch must be worth 1.")] = 1,
    resources: Annotated[
        str, typer.Option(help="What one sandbox may use, as spec.sandboxes.resources, as a JSON object.")
    ] = "{}",
    episode_timeout: Annotated[
        str, typer.Option(help="The environment's episodeTimeout, from which deadlines follow.")
    ] = _EPISODE_TIMEOUT,
) -> None:
    """Try every row in sandboxes of this machine: its gold patch must be worth 1, and an empty patch 0.

    A line a row: ok, drop (with the reason: it cannot be read or prepared, its tests outlast their time, they fail with
    the gold patch, or pass without), or unknown (its sandboxes were lost twice).

    Exit code 0: every row is ok. 1: some are to be dropped. 2: the file, an argument or this machine will not do.
    4: some are unknown.
    """
    assert action == "check"  # noqa: S101 - typer accepts nothing else
    asked = {"args": {**_object("--args", args), "data": str(file.absolute())}, "jobs": jobs, "repeat": repeat}
    if drops is not None:
        try:
            check_output_file(drops, "--drops", [file])
        except (OutputRefused, OSError) as error:
            _refuse(str(error))
    asked["drops"] = None if drops is None else str(drops.absolute())
    asked["episode_timeout_s"] = _seconds(episode_timeout)
    asked["limits"] = _limits(_object("--resources", resources))
    program = [sys.executable, "-P", "-m", "echorl_orchestrator.environments.check"]
    done = subprocess.run(program, input=json.dumps(asked).encode(), check=False)
    raise typer.Exit(done.returncode)


def _refuse(problem: str) -> NoReturn:
    typer.echo(problem, err=True)
    raise typer.Exit(ExitCode.BAD_INPUT)


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        _refuse(f"{option}: found {text!r} ({error}), accepted is a JSON object")
    if not isinstance(found, dict):
        _refuse(f"{option}: found {text!r}, accepted is a JSON object")
    return found


def _seconds(text: str) -> float:
    try:
        return duration_seconds(text)
    except ValueError:
        _refuse(f"--episode-timeout: found {text!r}, accepted is a duration, such as 10m or 1h30m")


def _limits(resources: dict[str, Any]) -> dict[str, Any]:
    """As sandboxes are made with them."""
    try:
        most = SandboxResources.model_validate(resources)
    except ValidationError as error:
        problems = field_problems(SandboxResources, resources, error).values()
        _refuse("\n".join(f"--resources: {problem}" for problem in problems))
    return {
        "cpu": most.cpu,
        "memory_bytes": int(quantity_number(most.memory)),
        "disk_bytes": int(quantity_number(most.disk)),
        "processes": most.processes,
    }
