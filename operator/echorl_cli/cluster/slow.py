"""``echorl why RUN --slow``: reads the account of time of a run in a cluster, or of a run's folder."""

import json
from pathlib import Path
from typing import Any

import msgspec
import typer

from echorl_cli.cluster.access import Cluster
from echorl_cli.cluster.notation import Notation
from echorl_cli.cluster.slowness import Finding, slowness
from echorl_cli.folders import run_folder
from echorl_cli.records import DamagedRecords, name_of, own_attempts, read_json
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_operator.diagnosis.durations import span


def is_folder(run: str) -> bool:
    """Whether this can be no run's name in a cluster, and so is a path."""
    return "/" in run or run in (".", "..")


async def of_cluster(cluster: Cluster, name: str, output: Notation) -> str:
    """The answer from a run's status."""
    run: dict[str, Any] = msgspec.json.decode(await cluster.run(name))
    return _written(name, slowness((run.get("status") or {}).get("goodput") or {}), output)


def of_folder(path: Path, output: Notation) -> str:
    """The answer from the newest account in a run's folder.

    Raises:
        typer.BadParameter: there is no such folder.
        typer.Exit: it is no run's, or damaged; standard error says so.
    """
    root = run_folder(path)
    try:
        if not RunDirectory(root).identity_file.is_file():
            raise FileNotFoundError(None, "found no run.json")
        return _written(name_of(root), slowness(_account(RunDirectory(root))), output)
    except DamagedRecords as error:
        typer.echo(str(error), err=True)
    except OSError as error:
        typer.echo(f"{root}: {error.strerror}; accepted: the directory of a run", err=True)
    raise typer.Exit(ExitCode.BAD_INPUT)


class _Account(msgspec.Struct):
    """What is read of ``goodput.json``, which the orchestrator keeps."""

    seconds: dict[str, dict[str, float]]


def _account(run: RunDirectory) -> dict[str, float]:
    for attempt, _ in reversed(own_attempts(run)):
        file = run.attempt(attempt) / "goodput.json"
        if found := read_json(file):
            try:
                kept = msgspec.convert(found, _Account)
            except msgspec.ValidationError:
                raise DamagedRecords(file, "no account of time") from None
            return {
                f"{role}/{state}": value for role, states in kept.seconds.items() for state, value in states.items()
            }
    return {}


def _written(name: str, finding: Finding, output: Notation) -> str:
    if output is Notation.TEXT:
        lines = [f"{share.role} {share.state}: {share.part:.0%} of {span(share.whole_s)}" for share in finding.shares]
        return "".join(f"{line}\n" for line in (f"{name}: {finding.sentence}", *(f"  {line}" for line in lines)))
    shares = {f"{share.role}/{share.state}": round(share.part, 4) for share in finding.shares}
    answer = {"name": name, "cause": finding.cause, "slow": finding.sentence, "shares": shares}
    return f"{json.dumps(answer, indent=2, ensure_ascii=False)}\n"
