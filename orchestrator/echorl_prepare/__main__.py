"""``python -m echorl_prepare``: the pod that prepares an attempt in a cluster.

Run and attempt are in ECHORL_RUN_NAME, ECHORL_RUN_UID and ECHORL_ATTEMPT, the hub's token in HF_TOKEN. Exit code 2:
something is wrong; nothing may start. It runs in the orchestrator's image, whose packages the user's code will meet.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import structlog
from msgspec.structs import replace

from echorl_core import __version__, logs, names
from echorl_core.attempts import OnExisting, Policy, Refused
from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end, write
from echorl_prepare.hub import HubUnreachable
from echorl_prepare.preparation import ROLE, BadInput, Overtaken, Resume, prepared_attempt

log = structlog.get_logger()

CONFIG = Path("/etc/echorl/prepare.json")
TERMINATED = 128 + signal.SIGTERM


def run(config_file: Path, resume: Resume) -> int:
    """Prepare the attempt that the environment names, and write the termination message; returns the exit code."""
    text = os.environ.get(names.ENV_ATTEMPT, "")
    attempt = int(text) if text.isdigit() else 0
    logs.configure(ROLE, attempt=attempt)
    _end_on_sigterm(attempt)
    try:
        message = prepared_attempt(config_file, resume)
    except (BadInput, Refused) as error:
        message = message_of_end(ROLE, ExitCode.BAD_INPUT, str(error))
    except Overtaken as error:
        message = replace(message_of_end(ROLE, ExitCode.FENCED, str(error)), last_attempt=error.last_attempt)
    except HubUnreachable as error:
        message = message_of_end(ROLE, ExitCode.CRASH, str(error))
    except Exception as error:
        log.exception("prepare failed")
        message = message_of_end(ROLE, ExitCode.CRASH, f"{type(error).__name__}: {error}", error=error)
    message = replace(message, attempt=attempt)
    (sys.stdout if message.exit_code == ExitCode.OK else sys.stderr).write(f"{message.message}\n")
    write(message)
    return message.exit_code


def _end_on_sigterm(attempt: int) -> None:
    """Process 1 of a container gets no signal that it does not handle. All that is written survives the end."""

    def end(number: int, _: FrameType | None) -> None:
        write(message_of_end(ROLE, TERMINATED, "terminated", attempt=attempt))
        os._exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)


def main() -> NoReturn:
    """Read the command line and prepare."""
    parser = argparse.ArgumentParser(prog="python -m echorl_prepare", description="Prepare an attempt in a cluster.")
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--policy", type=Policy, choices=list(Policy), default=Policy.AUTO)
    parser.add_argument("--step", type=int)
    parser.add_argument("--on-existing", type=OnExisting, choices=list(OnExisting), default=OnExisting.REFUSE)
    parser.add_argument("--version", action="version", version=__version__)
    chosen = parser.parse_args()
    sys.exit(run(chosen.config, Resume(chosen.policy, chosen.step, chosen.on_existing)))


if __name__ == "__main__":
    main()
