"""``echorl preflight FILE``: trainer and engine of this machine agree on the manifest's adapter, or say where not."""

import asyncio
import os
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from echorl_cli.local.checks import import_problems, machine_problems, model_problems
from echorl_cli.local.fleet import last_lines
from echorl_cli.local.launch import LocalRun, process_environment
from echorl_cli.local.machine import Machine
from echorl_cli.local.output import outlive_readers
from echorl_cli.local.processes import Child, Children
from echorl_cli.local.run import local_run
from echorl_cli.preflight.calls import CallFailed, EngineCalls
from echorl_cli.preflight.checks import CheckFailed, Checks
from echorl_cli.validate import ManifestArgument, SetOption, manifest_or_exit
from echorl_core import logs, preflight_step
from echorl_core.config import RoleConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode, Role
from echorl_manifest import EchoRLRun, Problem

TWO_POOLS = (
    "recommended: two pools of engines, one that serves the adapter and one without adapters for requests to the base; "
    "or leave spec.model.lora out and train all weights"
)
LEAST_SWAPS = 5
_ATTEMPT = 1
_POLL_S = 0.2
_CALL_S = 600.0


class RoleFailed(Exception):
    """A process of the preflight ended, or did not start in time."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _enough(swaps: int) -> int:
    if swaps < LEAST_SWAPS:
        raise typer.BadParameter(f"found {swaps}, accepted is at least {LEAST_SWAPS}")
    return swaps


def preflight_command(
    file: ManifestArgument,
    overrides: SetOption = None,
    swaps: Annotated[
        int, typer.Option(callback=_enough, help=f"Hot swaps after those of the step, at least {LEAST_SWAPS}.")
    ] = LEAST_SWAPS,
    max_slowdown: Annotated[
        float, typer.Option(min=1.0, help="How much longer requests for the base may take beside the adapter's.")
    ] = 3.0,
) -> None:
    """Try an adapter on this machine before a run: one step, its adapter in an engine, logprobs compared.

    It is of one machine: one trainer process and one engine, started here. A cluster's nodes are not looked at.

    Exit code 0: all checks passed. 1: one failed, or a process did. 2: the manifest or the model is wrong. 3: the step
    was NaN or infinite.
    """
    run = manifest_or_exit(file, overrides, local=True)
    outlive_readers()
    logs.configure("preflight", attempt=0)
    root = Path(tempfile.mkdtemp(prefix="echorl-preflight-"))
    code = int(ExitCode.CRASH)
    try:
        code = _tried(run, root, swaps=swaps, max_slowdown=max_slowdown)
    finally:
        if code in {ExitCode.OK, ExitCode.BAD_INPUT}:
            shutil.rmtree(root, ignore_errors=True)
    raise typer.Exit(code)


def _tried(run: EchoRLRun, root: Path, *, swaps: int, max_slowdown: float) -> int:
    machine = Machine.look(os.environ)
    if problems := list(_problems(run, machine)):
        typer.echo("\n".join(str(problem) for problem in problems), err=True)
        return ExitCode.BAD_INPUT
    plan = local_run(run, root, machine)
    try:
        asyncio.run(_Preflight(plan, root).run(swaps, max_slowdown))
    except RoleFailed as error:
        typer.echo(str(error), err=True)
        return error.code
    except CheckFailed as error:
        typer.echo(f"failed: {error}\n{TWO_POOLS}\nlogs: {root}", err=True)
        return ExitCode.CRASH
    typer.echo(f"{run.metadata.name}: preflight passed")
    return ExitCode.OK


def _problems(run: EchoRLRun, machine: Machine) -> Sequence[Problem]:
    if run.spec.model.lora is None:
        return [Problem("spec.model.lora", "nothing", "an adapter: without one there is nothing to try")]
    return [*model_problems(run, os.environ), *machine_problems(run, machine), *import_problems(run, machine.python)]


class _Preflight:
    """The processes of one preflight: the trainer's part to its end, then an engine."""

    def __init__(self, plan: LocalRun, root: Path) -> None:
        self._plan, self._root = plan, root
        self._identity = RunIdentity(plan.name, plan.uid, _ATTEMPT)
        self._token = secrets.token_hex(16)
        self._children = Children(root, uuid.uuid4().hex, on_exit=lambda _: None, on_error=lambda _: None)

    async def run(self, swaps: int, max_slowdown: float) -> None:
        """Do the trainer's part, and check the engine by it.

        Raises:
            RoleFailed, CheckFailed: what is wrong.
        """
        await self._children.open()
        try:
            await self._train_and_publish(swaps)
            trained = preflight_step.read(self._root)
            typer.echo(f"one step trained, gradient norm {trained.gradient_norm:.3g}")
            timeout = aiohttp.ClientTimeout(total=_CALL_S)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                calls = await self._engine(session)
                await Checks(calls, trained, max_slowdown=max_slowdown, say=typer.echo).run()
        finally:
            await self._children.settle()
            grace = self._plan.limits.engine_grace
            await asyncio.gather(*(self._children.end(child, grace_s=grace) for child in self._children.living))
            await self._children.close()

    async def _train_and_publish(self, swaps: int) -> None:
        config = self._written("trainer.json", self._plan.configs.trainer)
        command = [
            *self._module("echorl_trainer.preflight_step", config),
            "--out",
            str(self._root),
            "--swaps",
            str(swaps),
        ]
        child = await self._start(Role.TRAINER, command, WORLD_SIZE="1")
        try:
            await asyncio.wait_for(self._children.wait(child), self._plan.limits.start)
        except TimeoutError:
            raise RoleFailed(f"the trainer took longer than {self._plan.limits.start:.0f} s", 1) from None
        if child.exit_code != 0:
            raise RoleFailed(f"the trainer ended with code {child.exit_code}:\n{last_lines(child.log)}", _code(child))

    async def _engine(self, session: aiohttp.ClientSession) -> EngineCalls:
        described = self._plan.configs.inference[0]
        config = self._written("inference.json", described)
        child = await self._start(
            Role.INFERENCE, self._plan.commands.inference(config, (self._root / "engine-0").absolute())
        )
        calls = EngineCalls(
            session,
            f"http://{described.host}:{described.port}",
            run_uid=self._identity.uid,
            token=self._token,
        )
        deadline = time.monotonic() + self._plan.limits.start
        while child.exit_code is None and time.monotonic() < deadline:
            try:
                if (await calls.status("GET", "/health"))[0] == 200:
                    return calls
            except CallFailed:
                pass
            await asyncio.sleep(_POLL_S)
        how = "did not start in time" if child.exit_code is None else f"ended with code {child.exit_code}"
        raise RoleFailed(f"the engine {how}:\n{last_lines(child.log)}\n{TWO_POOLS}", _code(child))

    def _module(self, module: str, config: Path) -> list[str]:
        return [self._python, "-P", "-m", module, "--config", str(config)]

    @property
    def _python(self) -> str:
        return self._plan.commands.trainer(Path())[0]

    def _written(self, name: str, config: RoleConfig) -> Path:
        config.dump(self._root / name)
        return (self._root / name).absolute()

    async def _start(self, role: Role, command: Sequence[str], **variables: str) -> Child:
        environment = process_environment(self._plan, self._identity, self._token, role, 0, master_port=0)
        return await self._children.start(
            role,
            0,
            attempt=_ATTEMPT,
            command=command,
            environment={**environment, **variables},
            log=self._root / f"{role}.log",
        )


def _code(child: Child) -> int:
    """What the command ends with when a process of it ended: its own code where that says more than a crash."""
    codes = {int(code) for code in (ExitCode.BAD_INPUT, ExitCode.NON_FINITE)}
    return child.exit_code if child.exit_code in codes and child.exit_code is not None else int(ExitCode.CRASH)
