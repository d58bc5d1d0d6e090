"""Programs of ours as processes that a warm one forks: the same program, without the seconds of its imports.

The warm process imports what the programs need and does nothing else, so a program begins as after its imports: with
its own process id, variables, working folder, output and signals. How one starts from nothing is for other tests.
"""

import asyncio
import atexit
import functools
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path

_IMPORTED = [
    "echorl_testing.trainer.invariance",
    "echorl_testing.trainer.muon_ranks",
    "echorl_trainer.rank",
    "echorl_trainer.replay",
    "echorl_orchestrator.control.orchestrator",
    "echorl_cli.preflight.command",
    "echorl_cli.environments.command",
    "echorl_cli.local.run",
    "echorl_prepare.__main__",
    "echorl_cli.local.supervisor",
    "transformers.models.qwen3.modeling_qwen3",
]
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    # What is imported asks whether there is a GPU; asked by the driver, no process that is forked could use one.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_POLL_S = 0.02


@functools.cache
def context() -> ForkServerContext:
    """Makes processes of the warm one, which uses one thread as ranks do."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_IMPORTED)
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ |= _VARIABLES
    try:
        ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return found


class Program:
    """``python -m module arguments`` in a process of its own; has what tests use of ``asyncio.subprocess.Process``."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[object],
        *,
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
        folder: Path | None = None,
        anew: Sequence[str] = (),
    ) -> None:
        """Start it.

        Args:
            module: what is run.
            arguments: of its command line.
            environment: all of its variables.
            output: a file that what it prints is appended to.
            errors: a file for what it prints on standard error; None: ``output``.
            folder: its working folder; None: this one.
            anew: packages that it shall import itself, because they read variables when they are imported.
        """
        texts = [str(argument) for argument in arguments]
        files = (os.devnull, str(output), str(errors or output))
        call = (module, texts, dict(environment), files, str(folder or Path.cwd()), anew)
        # A daemon could have no children. What is no daemon is waited for when this process ends.
        self._process = context().Process(target=_run, args=call, daemon=False)
        atexit.register(self.kill)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for signals; None while it runs."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Exit code, once it has ended."""
        while (code := self.returncode) is None:  # noqa: ASYNC110 - a process of multiprocessing has no event
            await asyncio.sleep(_POLL_S)
        return code

    def ended(self, deadline_s: float) -> int:
        """The same, for tests without an event loop.

        Raises:
            TimeoutError: it still runs at the deadline.
        """
        end = time.monotonic() + deadline_s
        while (code := self.returncode) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} still runs after {deadline_s:.0f} s")
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, if it lives."""
        if self.returncode is None:
            # It may have been reaped, and its exit code not have come yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    files: Sequence[str],
    folder: str,
    anew: Sequence[str],
) -> None:
    for number, name in enumerate(files):
        file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lasts as long as the process; multiprocessing closed it
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    os.chdir(folder)
    sys.argv = [module, *arguments]
    for name in list(sys.modules):
        if name == module or name.partition(".")[0] in anew:
            del sys.modules[name]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
