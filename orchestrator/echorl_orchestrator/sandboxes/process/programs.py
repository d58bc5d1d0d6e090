"""How this package's own programs are started: by Python alone, with nothing of the environment that surrounds it."""

import sys
from pathlib import Path

import echorl_orchestrator

OWN_ENVIRONMENT = {"PYTHONPATH": str(Path(echorl_orchestrator.__file__).parents[1])}


def own_program(name: str, argument: str) -> list[str]:
    """The command line of one."""
    return [sys.executable, "-S", "-P", "-m", f"echorl_orchestrator.sandboxes.process.{name}", argument]
