"""``echorl prepare``: the start of one attempt, as the supervisor and the operator do it."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.folders import named_path
from echorl_cli.local import lock
from echorl_cli.output_path import OutputRefused, check_output_folder
from echorl_core import names
from echorl_core.attempts import OnExisting, Policy, Refused, read_run
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory


def prepare_command(
    *,
    run_dir: Annotated[Path, typer.Option("--run-dir", parser=named_path, metavar="DIR", help="Directory of the run.")],
    attempt: Annotated[int | None, typer.Option(help="Attempt that starts; default: the one after the last.")] = None,
    uid: Annotated[str | None, typer.Option(help="Uid of the run; default: that of run.json.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; default: that of run.json.")] = None,
    policy: Annotated[Policy, typer.Option(help="Where to begin.")] = Policy.AUTO,
    step: Annotated[int | None, typer.Option(help="With FromStep: the checkpoint's step.")] = None,
    on_existing: Annotated[
        OnExisting, typer.Option(help="With another run's directory, or with checkpoints under Never.")
    ] = OnExisting.REFUSE,
) -> None:
    """Choose the step that an attempt resumes from, and remove what it must not read.

    Identity that is not given is taken from ECHORL_RUN_UID, ECHORL_RUN_NAME and ECHORL_ATTEMPT, then from the
    directory. A directory that a supervisor works in is refused; elsewhere no process of the run may be alive.
    Exit code 2: refused, nothing was removed.
    """
    run = RunDirectory(run_dir)
    try:
        check_output_folder(run_dir, "--run-dir")
        identity = _identity(run, uid, name, attempt)
        with lock.held(run_dir) if (run_dir / lock.NAME).exists() else nullcontext():
            prepared = prepare(run, identity, policy=policy, step=step, on_existing=on_existing)
    except (Refused, OutputRefused, lock.Locked) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    except OSError as error:
        typer.echo(
            f"--run-dir: found {error.filename or run_dir}: {error.strerror}; accepted: a folder that can be written",
            err=True,
        )
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    for line in prepared.lines():
        typer.echo(line)


def _identity(run: RunDirectory, uid: str | None, name: str | None, attempt: int | None) -> RunIdentity:
    record = read_run(run)
    uid = uid or os.environ.get(names.ENV_RUN_UID) or (record.uid if record else None)
    name = name or os.environ.get(names.ENV_RUN_NAME) or (record.name if record else None)
    if uid is None or name is None:
        raise Refused(f"{run.root}: has no run.json; say whose it is with --uid and --name")
    if attempt is None:
        text = os.environ.get(names.ENV_ATTEMPT) or str(run.last_attempt() + 1)
        attempt = int(text) if text.isdigit() else 0
    if attempt < 1:
        raise Refused(f"--attempt: found {attempt}, accepted is an integer from 1")
    return RunIdentity(name, uid, attempt)
