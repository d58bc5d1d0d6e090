"""``python -m echorl_orchestrator --config orchestrator.json``; identity and token come from the environment."""

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import structlog
import uvloop
from msgspec.structs import replace
from pydantic import ValidationError

from echorl_core import __version__, checkpoints, logs, names
from echorl_core.attempts import Refused
from echorl_core.checkpoints import Damage
from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode, Role
from echorl_core.notices import time_for_work_s
from echorl_core.rundir import RunDirectory
from echorl_core.termination_message import SavedCheckpoint, TerminationMessage, code_name, message_of_end, write
from echorl_orchestrator.attempt.presence import check_there
from echorl_orchestrator.control.endings import Ending
from echorl_orchestrator.control.orchestrator import Orchestrator
from echorl_orchestrator.control.wiring import Secrets
from echorl_orchestrator.failures import BadInputError, RunFailure
from echorl_orchestrator.monitors.monitors import taken_key
from echorl_orchestrator.workers import own_memory

log = structlog.get_logger()

_FIRST = 1
"""The number of a container's process, where all that share its user are what it started."""


def main() -> int:
    """Run the role; the exit code is one of ``names.ExitCode``, or 143 after a signal that was no notice."""
    parser = argparse.ArgumentParser(prog="echorl_orchestrator", description="The orchestrator of one run.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with an OrchestratorConfig")
    parser.add_argument("--log-style", choices=["console", "json"], default="console")
    parser.add_argument("--version", action="version", version=__version__)
    arguments = parser.parse_args()
    if os.getpid() == _FIRST:
        own_memory.withhold()
    # Last words hide the values of secrets, also of those that are taken out below.
    given = dict(os.environ)
    try:
        identity = RunIdentity.from_environment(os.environ)
        # Taken out of the environment, as all secrets are: workers with user code inherit it.
        token = os.environ.pop(names.ENV_ADMIN_TOKEN, "")
        if not token:
            raise BadInputError(f"environment variable {names.ENV_ADMIN_TOKEN} is missing")
        within_s = time_for_work_s(os.environ)
        wandb_key = taken_key(os.environ)
        config = OrchestratorConfig.model_validate_json(arguments.config.read_text())
    except (OSError, ValueError, ValidationError) as error:
        sys.stderr.write(f"{arguments.config}: {error}\n")
        write(message_of_end(Role.ORCHESTRATOR, ExitCode.BAD_INPUT, f"{arguments.config}: {error}"), given)
        return ExitCode.BAD_INPUT
    logs.configure(Role.ORCHESTRATOR, attempt=identity.attempt, style=arguments.log_style)
    seats = [name for name in os.environ if name.startswith(names.SECRET_VARIABLE_PREFIX)]
    seat_keys = {name: os.environ.pop(name) for name in seats}
    teacher_key = os.environ.pop(names.ENV_TEACHER_KEY, None)
    words = RoleProcess(config, identity, Secrets(token, teacher_key, wandb_key, seat_keys), within_s).run_to_words()
    if words.exit_code in {ExitCode.OK, ExitCode.STOPPED}:
        words = replace(words, saved=_newest_checkpoint(config, identity))
    write(words, given)
    return words.exit_code


class RoleProcess:
    """The process: an orchestrator from its opening to the last words about it."""

    def __init__(
        self, config: OrchestratorConfig, identity: RunIdentity, secrets: Secrets, within_s: float | None = None
    ) -> None:
        """``within_s``: seconds that the role may work on after SIGTERM, which is a notice then; None: it ends."""
        self._config, self._identity, self._secrets, self._within_s = config, identity, secrets, within_s
        self._opened: Orchestrator | None = None
        self._leaving: asyncio.Task[None] | None = None

    def run_to_words(self) -> TerminationMessage:
        """Run the role; every failure is logged and told by an exit code."""
        unexpected = None
        try:
            code, message = uvloop.run(self._until_a_signal())
        except (BadInputError, Refused) as error:
            log.error("bad input", error=str(error))
            code, message = ExitCode.BAD_INPUT, str(error)
        except RunFailure as failure:
            log.error("the role cannot start", reason=failure.message)
            code, message = failure.code, failure.message
        except Damage as error:
            log.error("the checkpoint to resume from is damaged", error=str(error))
            code, message = ExitCode.CRASH, f"the checkpoint to resume from is damaged: {error}"
        except Exception as error:
            if (gone := _gone(self._config)) is not None:
                log.error("the role ends", reason=gone, error=_causes(error))
                code, message = ExitCode.CRASH, gone
            else:
                log.exception("crash")
                code, message, unexpected = ExitCode.CRASH, _causes(error), error
        step, reward = (None, None) if self._opened is None else (self._opened.step, self._opened.reward)
        attempt = self._identity.attempt
        words = message_of_end(Role.ORCHESTRATOR, code, message, attempt=attempt, step=step, error=unexpected)
        return replace(words, reward=reward)

    async def _until_a_signal(self) -> tuple[int, str]:
        """The exit code and what to say of it; SIGINT, and SIGTERM that is no notice, end the role at once."""
        role = asyncio.create_task(self._run())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, role.cancel)
        loop.add_signal_handler(signal.SIGTERM, self._terminated, role)
        try:
            ending = await role
        except asyncio.CancelledError:
            log.info("ended by a signal")
            if self._leaving is None:
                return 128 + signal.SIGTERM, "terminated"
            return ExitCode.NOTICE, "given notice: what was ready is sealed"
        return ending.code, ending.words or code_name(ending.code)

    def _terminated(self, role: asyncio.Task[Ending]) -> None:
        opened, within_s = self._opened, self._within_s
        # Probes end a role that makes no progress by the same signal.
        if opened is None or within_s is None or opened.problem is not None or self._leaving is not None:
            role.cancel()
            return
        self._leaving = asyncio.create_task(self._leave(opened, within_s, role))

    @staticmethod
    async def _leave(opened: Orchestrator, within_s: float, role: asyncio.Task[Ending]) -> None:
        log.info("given notice", within_s=within_s)
        try:
            async with asyncio.timeout(within_s):
                await opened.leave()
        except TimeoutError:
            log.warning("not everything was kept in time", within_s=within_s)
        except Exception:
            log.exception("not everything was kept")
        role.cancel()

    async def _run(self) -> Ending:
        self._opened = await Orchestrator.opened(self._config, self._identity, self._secrets)
        # What lasts as long as the process needs no look by the collector, which stops every turn for it.
        gc.collect()
        gc.freeze()
        return await self._opened.run()


def _newest_checkpoint(config: OrchestratorConfig, identity: RunIdentity) -> SavedCheckpoint | None:
    """What this run has committed last; None too if the volume cannot be read, which changes no ending."""
    try:
        saved, _ = checkpoints.committed(RunDirectory(Path(config.run_dir)))
    except OSError as error:
        log.warning("the newest checkpoint is not told", error=str(error))
        return None
    own = [checkpoint.manifest for checkpoint in saved if checkpoint.manifest.run_uid == identity.uid]
    if not own:
        return None
    return SavedCheckpoint(step=own[-1].step, committed_at=own[-1].committed_at, size_bytes=own[-1].size_bytes)


def _gone(config: OrchestratorConfig) -> str | None:
    """Why nothing works any more, if the run directory is gone: then every error is but a symptom of it."""
    try:
        check_there(RunDirectory(Path(config.run_dir)))
    except RunFailure as failure:
        return failure.message
    except OSError:
        return None
    return None


def _causes(error: BaseException) -> str:
    """An error in one line; those that a group of tasks holds in place of the group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_causes(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
