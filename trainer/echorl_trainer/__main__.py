"""One trainer rank: ``python -m echorl_trainer --config trainer.json``.

The rank is in torchrun's variables, the run and the attempt in ``ECHORL_*``. The config is read before torch is
imported, so a wrong one is reported at once. Exit codes: ``echorl_core.names.ExitCode``. SIGTERM ends it at once;
SIGUSR1, from its pod alone, is a notice (``notices.py``).
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace
from pydantic import ValidationError

from echorl_core import __version__, logs, names
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode, Role
from echorl_core.notices import time_for_work_s
from echorl_core.termination_message import TerminationMessage, message_of_end, write
from echorl_trainer.ending import end
from echorl_trainer.notices import Notice

log = structlog.get_logger()

TERMINATED = 128 + signal.SIGTERM
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - refused as an address to tell others


def main(arguments: Sequence[str]) -> int:
    """Run the rank that the environment names; the exit code."""
    try:
        config, identity, token = read_input(arguments)
        within_s = time_for_work_s(os.environ)
    except (OSError, ValueError) as error:
        logs.configure(Role.TRAINER, attempt=0)
        log.error("the trainer cannot start", error=str(error))
        write(message_of_end(Role.TRAINER, ExitCode.BAD_INPUT, str(error)))
        return ExitCode.BAD_INPUT
    rank = int(os.environ.get("RANK", "0"))
    logs.configure(Role.TRAINER, attempt=identity.attempt, rank=rank)
    words_of = partial(message_of_end, Role.TRAINER, attempt=identity.attempt, rank=rank)
    notice = None if within_s is None else Notice(within_s, words_of)
    terminated = on_signals(words_of(TERMINATED, "terminated"), notice)
    # torch takes seconds to import and is of no use to a rank with a wrong config.
    from echorl_trainer.background import share_lock  # noqa: PLC0415
    from echorl_trainer.rank import run_to_words  # noqa: PLC0415

    share_lock()
    words = run_to_words(config, identity, token, notice)
    if terminated.is_set():
        return TERMINATED
    write(replace(words, rank=rank))
    return words.exit_code


def read_input(arguments: Sequence[str]) -> tuple[TrainerConfig, RunIdentity, str]:
    """Config, identity and the run's token.

    Raises:
        OSError, ValueError: names the file, field or variable that is wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m echorl_trainer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the role's config as JSON")
    parser.add_argument("--version", action="version", version=__version__)
    path = parser.parse_args(arguments).config
    try:
        config = TrainerConfig.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ValueError(f"{path}: {error}") from error
    if host := os.environ.get(names.ENV_ADVERTISE_HOST):
        config = config.model_copy(update={"advertise_host": host})
    if config.weight_mode != "disk" and (config.advertise_host or config.publish_host) in ANY_ADDRESS:
        found = config.advertise_host or config.publish_host
        raise ValueError(f"{path}: advertise_host: engines need an address to pull from, found {found!r}")
    token = os.environ.get(names.ENV_ADMIN_TOKEN, "")
    if not token:
        raise ValueError(f"environment variable {names.ENV_ADMIN_TOKEN} is missing")
    return config, RunIdentity.from_environment(os.environ), token


def on_signals(last: TerminationMessage, notice: Notice | None) -> threading.Event:
    """End at once on SIGTERM, also while the main thread is inside a collective; every write survives that.

    Python runs signal handlers in the main thread only, between two of its instructions. So a thread of its own
    reads the signals' numbers from a pipe that the interpreter's C handler writes to.

    Args:
        last: last words after SIGTERM.
        notice: what sees to SIGUSR1, in a thread of its own.

    Returns an event that says that SIGTERM came: what the main thread fails with after it is of no interest.
    """
    terminated = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    if notice is not None:
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def wait() -> None:
        given = False
        while signal.SIGTERM not in (number := os.read(reading, 1)):
            if notice is not None and not given and signal.SIGUSR1 in number:
                given = True
                threading.Thread(target=notice.given, name="notice", daemon=True).start()
        terminated.set()
        log.info("terminated")
        write(last)
        os._exit(TERMINATED)

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return terminated


if __name__ == "__main__":
    end(main(sys.argv[1:]))
