"""``python -m echorl_orchestrator --config orchestrator.json``; identity and token come from the environment."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog
import uvloop
from pydantic import ValidationError

from echorl_core import logs, names
from echorl_core.attempts import Refused
from echorl_core.checkpoints import Damage
from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_orchestrator.orchestrator import Orchestrator
from echorl_orchestrator.refusals import BadInputError

log = structlog.get_logger()


def main() -> int:
    """Run the role; the exit code is one of ``names.ExitCode``, or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="echorl_orchestrator", description="The orchestrator of one run.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with an OrchestratorConfig")
    parser.add_argument("--log-style", choices=["console", "json"], default="console")
    arguments = parser.parse_args()
    try:
        identity = RunIdentity.from_environment(os.environ)
        token = os.environ.get(names.ENV_ADMIN_TOKEN, "")
        if not token:
            raise BadInputError(f"environment variable {names.ENV_ADMIN_TOKEN} is missing")
        config = OrchestratorConfig.model_validate_json(arguments.config.read_text())
    except (OSError, ValueError, ValidationError) as error:
        sys.stderr.write(f"{arguments.config}: {error}\n")
        return ExitCode.BAD_INPUT
    logs.configure(names.Role.ORCHESTRATOR, attempt=identity.attempt, style=arguments.log_style)
    try:
        return int(uvloop.run(_run(config, identity, token)))
    except (BadInputError, Refused) as error:
        log.error("bad input", error=str(error))
        return ExitCode.BAD_INPUT
    except Damage as error:
        log.error("the checkpoint to resume from is damaged", error=str(error))
        return ExitCode.CRASH
    except Exception:
        log.exception("crash")
        return ExitCode.CRASH


async def _run(config: OrchestratorConfig, identity: RunIdentity, token: str) -> int:
    """The role, ended at once by SIGTERM or SIGINT."""
    role = asyncio.create_task(Orchestrator(config, identity, token).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, role.cancel)
    try:
        return await role
    except asyncio.CancelledError:
        log.info("ended by a signal")
        return 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
