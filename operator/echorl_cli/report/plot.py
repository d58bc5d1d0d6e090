"""``echorl plot DIR``: curves of a run as SVG files, and the swimlane of one of its episodes."""

from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.folders import RunFolder, named_path
from echorl_cli.output_path import OutputRefused, check_output_folder, write_output
from echorl_cli.records import DamagedRecords, read_records
from echorl_cli.report import figures
from echorl_cli.report.page import plots
from echorl_core.names import ExitCode

PLOT_NAMES = ("reward", "eval_reward", "env_nll", "eval_env_nll", "staleness", "throughput", "time", "entropy")


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(int(ExitCode.BAD_INPUT))


def plot_command(
    run_dir: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(parser=named_path, metavar="FOLDER", help="Folder for the pictures; default RUN_DIR/plots."),
    ] = None,
    episode: Annotated[
        str | None, typer.Option(help="Episode to draw as a swimlane; default: the last recorded one.")
    ] = None,
) -> None:
    """Draw a run's curves and one episode's swimlane (generation, tool time, aborts) from its records."""
    folder = out or run_dir / "plots"
    try:
        check_output_folder(folder, "--out")
        records = read_records(run_dir)
    except (DamagedRecords, OutputRefused) as error:
        raise _refuse(str(error)) from None
    except OSError as error:
        raise _refuse(f"{run_dir}: {error.strerror}; accepted: the directory of a run") from None
    if not records.steps and not records.evals:
        raise _refuse(f"{run_dir}: no records found; accepted is the directory of a run that has trained or evaluated")
    chosen = [row for row in records.episodes if episode is None or row.get("episode") == episode]
    if episode is not None and not chosen:
        known = ", ".join(str(row.get("episode")) for row in records.episodes[-5:])
        raise _refuse(f"--episode: found {episode!r}, accepted are recorded ones, such as {known or 'none'}")
    pictures = dict(zip(PLOT_NAMES, plots(records), strict=True))
    if chosen:
        row = chosen[-1]
        title = f"episode {row.get('episode')} (step {row.get('step')}, reward {row.get('reward')})"
        pictures["episode"] = figures.swimlane(title, row.get("turns") or [])
    try:
        for name, svg in pictures.items():
            write_output(folder / f"{name}.svg", svg.encode(errors="replace"), "--out")
    except OutputRefused as error:
        raise _refuse(str(error)) from None
    typer.echo(f"{len(pictures)} pictures in {folder}")
