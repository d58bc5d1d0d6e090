"""``echorl report DIR``: ``report.html`` and ``report.json`` of a run, also of one that was copied from a volume."""

import os
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.folders import RunFolder, named_path
from echorl_cli.output_path import OutputRefused
from echorl_cli.records import DamagedRecords
from echorl_cli.report import write_report
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory

BASELINES = "baselines.json"


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(int(ExitCode.BAD_INPUT))


def _model(run_dir: Path, model: Path | None) -> Path | None:
    """Folder with the reference figures: the one that was given, else the model that prepare linked, if it is there."""
    if model is None:
        linked = run_dir / ".model"
        return linked if (linked / BASELINES).is_file() else None
    if not os.path.isfile(model / BASELINES):  # noqa: PTH113 - false, whatever the name
        raise _refuse(f"--model: found no {BASELINES} in {model}; accepted: the folder of a model that has one")
    return model


def _has_records(run_dir: Path) -> bool:
    try:
        return bool(RunDirectory(run_dir).recorded_attempts())
    except OSError as error:
        raise _refuse(f"{run_dir}: {error.strerror}; accepted: the directory of a run") from None


def report_command(
    run_dir: RunFolder,
    model: Annotated[
        Path | None, typer.Option(help="Folder of its model, for the reference figures in baselines.json.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=named_path, metavar="FOLDER", help="Folder to write to; default: RUN_DIR.")
    ] = None,
) -> None:
    """Write a run's report: curves, figures and episodes to read as one page, and the figures for scripts."""
    if not _has_records(run_dir):
        raise _refuse(f"{run_dir}: found no records; accepted: the directory of a run that has trained or evaluated")
    try:
        page = write_report(run_dir, _model(run_dir, model), out)
    except (DamagedRecords, OutputRefused) as error:
        raise _refuse(str(error)) from None
    typer.echo(f"report: {page}")
