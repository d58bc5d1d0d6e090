"""``python -m echorl_vllm --config inference.json --work DIR``: clean up after a dead engine, then become vLLM.

The process id stays the same, so whoever started this process supervises the engine itself.
"""

import argparse
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from echorl_core import __version__
from echorl_core.config import InferenceConfig
from echorl_core.names import ENV_ADMIN_TOKEN, ENV_RUN_UID, ExitCode, Role
from echorl_core.notices import time_for_work_s
from echorl_core.termination_message import message_of_end, write
from echorl_vllm.adapter import FOLDER as ADAPTER_FOLDER
from echorl_vllm.adapter import write_start_adapter
from echorl_vllm.environment import share_model_facts, short_path
from echorl_vllm.launch import Installed, command
from echorl_vllm.leftovers import TEMPORARY_FOLDER, EngineRunningError, remove_leftovers, take_ownership

log = logging.getLogger("echorl.engine")


class BadInputError(ValueError):
    """The engine cannot be started from what it was given."""


def _vllm_package() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise BadInputError(f"{sys.executable}: this Python environment has no vllm")
    return Path(spec.submodule_search_locations[0])


def _prepare(config_path: Path, work: Path, spool: Path | None) -> tuple[list[str], dict[str, str]]:
    for name in (ENV_ADMIN_TOKEN, ENV_RUN_UID):
        if not os.environ.get(name):
            raise BadInputError(f"environment variable {name}: is not set")
    time_for_work_s(os.environ)
    try:
        config = InferenceConfig.model_validate_json(config_path.read_text())
    except (OSError, ValidationError) as error:
        raise BadInputError(f"{config_path}: {error}") from error
    if not (Path(config.model.path) / "config.json").exists():
        raise BadInputError(f"model.path: {config.model.path} has no config.json")
    work.mkdir(parents=True, exist_ok=True)
    removed = remove_leftovers(work)
    if removed:
        log.info("removed what a dead engine left: %s", ", ".join(removed))
    for name in (TEMPORARY_FOLDER, "cache"):
        (work / name).mkdir(exist_ok=True)
    temporary = short_path(work / TEMPORARY_FOLDER)
    take_ownership(work)
    if config.model.lora is not None:
        write_start_adapter(work / ADAPTER_FOLDER, config.model)
    package = _vllm_package()
    share_model_facts(work / "cache", Path(sys.prefix), package)
    installed = Installed.find(package)
    return command(config, work=work, python=sys.executable, installed=installed, spool=spool, temporary=temporary)


def _give_up(code: ExitCode, error: Exception) -> NoReturn:
    log.error("engine not started: %s", error)
    write(message_of_end(Role.INFERENCE, code, f"engine not started: {error}"))
    sys.exit(code)


def main() -> NoReturn:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m echorl_vllm", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON of the engine's config (InferenceConfig)")
    parser.add_argument("--work", type=Path, required=True, help="the engine's own folder, kept over restarts")
    parser.add_argument("--spool", type=Path, help="folder for downloaded weights, shared by the engines of a host")
    parser.add_argument("--version", action="version", version=__version__)
    chosen = parser.parse_args()
    # The process becomes vLLM, whose logs are plain lines; these are too.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    spool = None if chosen.spool is None else chosen.spool.absolute()
    try:
        argv, variables = _prepare(chosen.config, chosen.work.absolute(), spool)
    except EngineRunningError as error:
        _give_up(ExitCode.CRASH, error)
    except ValueError as error:
        _give_up(ExitCode.BAD_INPUT, error)
    log.info("starting %s", " ".join(argv))
    os.execve(argv[0], argv, {**os.environ, **variables})  # noqa: S606 - the arguments are a list


if __name__ == "__main__":
    main()
