"""``echorl validate FILE``: every problem of a manifest, or that there is none."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from echorl_cli.manifest_file import InvalidManifest, read_manifest
from echorl_core.names import ExitCode
from echorl_manifest import EchoRLRun, refused_locally
from echorl_operator.children import always_refused, cluster_problems
from echorl_operator.settings_file import read_settings

ManifestArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Manifest (YAML).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one field, e.g. maxSteps=3. May be repeated."),
]


def manifest_or_exit(file: Path, overrides: list[str] | None, *, local: bool = False) -> EchoRLRun:
    """The manifest; or every problem on stderr and the end of the process, with the code for bad input.

    ``local``: what only a cluster carries out is a problem too.
    """
    try:
        return read_manifest(file, overrides or (), local=local)
    except InvalidManifest as error:
        end_with(error)


def end_with(error: InvalidManifest) -> NoReturn:
    """Every problem of a manifest on stderr, and the end of the process with the code for bad input."""
    typer.echo(str(error), err=True)
    count = len(error.problems)
    typer.echo(f"{error.path}: {count} problem{'s' if count > 1 else ''}", err=True)
    raise typer.Exit(int(ExitCode.BAD_INPUT)) from None


def advice_of_preflight(file: Path) -> str:
    """What to try before a run with an adapter."""
    return f"spec.model.lora: `echorl preflight {file}` tries the adapter in an engine, in about a minute"


def validate_command(file: ManifestArgument, overrides: SetOption = None) -> None:
    """Check a manifest and print every problem. Exit code 2 if there is one."""
    run = manifest_or_exit(file, overrides)
    if problems := always_refused(run):
        end_with(InvalidManifest(file, problems))
    for path in refused_locally(run.spec):
        typer.echo(f"{path}: works in a cluster, and is refused by `echorl run`", err=True)
    for problem in cluster_problems(run, read_settings(None)):
        typer.echo(f"{problem} (in a cluster with default settings)", err=True)
    if run.spec.model.lora is not None:
        typer.echo(advice_of_preflight(file), err=True)
    typer.echo(f"{file}: valid, run {run.metadata.name}")
