"""``echorl run FILE``: a run on this machine, from its checks to its report."""

import asyncio
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from echorl_cli.folders import named_path
from echorl_cli.local import lock
from echorl_cli.local.checks import all_problems
from echorl_cli.local.launch import Limits, LocalRun, ModuleCommands
from echorl_cli.local.machine import Machine, divide_gpus, environment_of, gpu_users, model_folder, place
from echorl_cli.local.notes import end_leftovers
from echorl_cli.local.outcome import Outcome
from echorl_cli.local.output import outlive_readers
from echorl_cli.local.supervisor import Supervisor
from echorl_cli.local.view import LiveView, PlainView
from echorl_cli.manifest_file import manifest_text
from echorl_cli.output_path import OutputRefused, check_output_folder
from echorl_cli.report import write_report
from echorl_cli.validate import ManifestArgument, SetOption, advice_of_preflight, manifest_or_exit
from echorl_core import logs
from echorl_core.attempts import OnExisting, Policy, claim_run, owner_of, read_run
from echorl_core.leftovers import archive
from echorl_core.names import ExitCode
from echorl_core.prepare import objection
from echorl_core.rundir import RunDirectory, write_file
from echorl_manifest import EchoRLRun, Problem, duration_seconds, unused_locally
from echorl_manifest.compile.failure_policy import restart_policy, restart_rules
from echorl_manifest.compile.role_configs import role_configs

_LEFTOVER_GRACE_S = 5.0

Report = Callable[[Path], Path]


class BadInput(Exception):
    """The run cannot start; carries every problem."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def run_command(
    file: ManifestArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", parser=named_path, metavar="DIR", help="Directory of the run; default runs/<metadata.name>."
        ),
    ] = None,
    overrides: SetOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines also on a terminal.")] = False,
) -> None:
    """Train on this machine. The same command goes on where an earlier one stopped."""
    run = manifest_or_exit(file, overrides, local=True)
    root = out or Path("runs") / run.metadata.name
    outlive_readers()
    logs.configure("supervisor", attempt=0)
    for path in unused_locally(run.spec):
        typer.echo(f"{path}: has no meaning on one machine, and is left out", err=True)
    if run.spec.model.lora is not None and not root.exists():
        typer.echo(advice_of_preflight(file), err=True)
    try:
        with ExitStack() as held:
            plan = _planned(run, root, held)
            outcome = _supervised(plan, PlainView if plain or not sys.stdout.isatty() else LiveView)
    except (BadInput, OutputRefused, lock.Locked) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    typer.echo(f"{run.metadata.name}: {outcome.phase}: {outcome.reason}", err=outcome.exit_code != 0)
    raise typer.Exit(outcome.exit_code)


def _planned(run: EchoRLRun, root: Path, held: ExitStack) -> LocalRun:
    """Everything that can refuse the run; its folder is locked until ``held`` ends.

    Raises:
        BadInput: with every problem; nothing is left of a folder that was not there before.
        OutputRefused: the folder cannot be one.
        Locked: another supervisor works in it.
    """
    check_output_folder(root, "--out")
    try:
        created = not root.exists()
        held.enter_context(lock.held(root))
        try:
            _end_leftovers(root)
            machine = Machine.look(os.environ)
            if problems := all_problems(run, root, machine, os.environ):
                raise BadInput(problems)
            for user in gpu_users(os.environ) if machine.gpus else ():
                typer.echo(f"a GPU is in use by process {user}", err=True)
            return local_run(run, root, machine)
        except BaseException:
            if created:
                _leave_no_trace(root)
            raise
    except OSError as error:
        cause = f"{error.filename or root}: {error.strerror or error}"
        raise BadInput([Problem("--out", cause, "a folder that can be written")]) from error
    except ValueError as error:
        raise BadInput([Problem("spec.model.name", str(error), "a folder that stays")]) from error


def _supervised(plan: LocalRun, view_of: type[PlainView] | type[LiveView]) -> Outcome:
    try:
        with view_of(Console()) as view:
            outcome = asyncio.run(Supervisor(plan, view).run())
    except OSError as error:
        return Outcome.of_error(error)
    if plan.run.root.is_dir():
        _report(plan.run.root, lambda folder: write_report(folder, Path(plan.configs.orchestrator.model.path)))
    return outcome


def local_run(run: EchoRLRun, root: Path, machine: Machine) -> LocalRun:
    """Claim the run directory, and resolve everything that the supervisor needs.

    Raises:
        OSError: the directory cannot be written, or there are not enough free ports.
        ValueError: the model's folder is gone.
    """
    spec, directory = run.spec, RunDirectory(root)
    model = model_folder(spec.model.name, os.environ)
    if model is None:
        raise ValueError(f"{spec.model.name}, which is gone")
    uid = _claim(run, directory)
    write_file(directory.manifest_file, manifest_text(run).encode())
    silence = duration_seconds(spec.stall_policy.no_step_for)
    return LocalRun(
        run=directory,
        name=run.metadata.name,
        uid=uid,
        configs=role_configs(run, place(run, root, model, machine)),
        commands=ModuleCommands(machine.python, str(machine.engine_python(spec))),
        devices=divide_gpus(run, machine.gpus),
        restart_policy=restart_policy(spec),
        rules=restart_rules(spec),
        limits=Limits(unhealthy=silence, no_step=silence, start=max(silence, 600.0)),
        resume=Policy(spec.resume.policy),
        resume_step=spec.resume.step,
        on_existing=OnExisting(spec.resume.on_existing),
        environment=environment_of(os.environ),
    )


def _claim(run: EchoRLRun, directory: RunDirectory) -> str:
    """The run's uid: that of the directory, or a new one after what was there has been moved aside."""
    record, name = read_run(directory), run.metadata.name
    policy = Policy(run.spec.resume.policy)
    foreign = record is not None and record.name != name
    if foreign or objection(directory, record.uid if record else "this one", policy) is not None:
        # The checks have refused this unless the manifest says Archive.
        target = archive(directory, owner_of(directory))
        typer.echo(f"moved what was in {directory.root} to {target}", err=True)
    return claim_run(directory, name, uuid.uuid4().hex).uid


def _end_leftovers(root: Path) -> None:
    """End what a killed supervisor left in this directory."""
    leftovers = end_leftovers(root, grace_s=_LEFTOVER_GRACE_S)
    if leftovers is None:
        return
    if leftovers.copied_from is not None:
        copied = f"{root} is a copy of {leftovers.copied_from}, whose processes are left alone"
        typer.echo(f"{copied}; both have one uid, and so one run in W&B", err=True)
    for stat in leftovers.ended:
        typer.echo(f"ended process {stat.pid} ({stat.command}), which an earlier supervisor left", err=True)
    for stat in leftovers.residual:
        typer.echo(f"process {stat.pid} ({stat.command}) of an earlier supervisor cannot be ended", err=True)
    for path in leftovers.shared_memory:
        typer.echo(f"removed {path}, which an earlier run left", err=True)


def _report(root: Path, report: Report) -> None:
    # A report that fails must not hide how the run ended.
    try:
        typer.echo(f"report: {report(root)}")
        typer.echo((root / "report.json").read_text().strip())
    except Exception as error:
        typer.echo(f"report: not written: {type(error).__name__}: {error}", err=True)


def _leave_no_trace(root: Path) -> None:
    """Remove the folder that was made only to hold the lock."""
    with suppress(OSError):
        (root / lock.NAME).unlink(missing_ok=True)
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()
