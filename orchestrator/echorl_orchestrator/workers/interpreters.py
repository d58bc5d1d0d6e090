"""Which Python a worker runs in: a library whose pins are not ours has an environment of its own beside ours."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from echorl_orchestrator.failures import BadInputError

ENV_VERIFIERS_PYTHON = "ECHORL_VERIFIERS_PYTHON"


def interpreter(kind: str, environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix) -> str:
    """The interpreter of workers for an environment of type ``kind``.

    For ``verifiers:`` it is ``$ECHORL_VERIFIERS_PYTHON``, else the one in ``<prefix>-verifiers``, which
    ``scripts/setup.sh verifiers`` makes; where there is none, and for all others, the one that runs this.

    Raises:
        BadInputError: the variable names no file.
    """
    if not kind.startswith("verifiers:"):
        return sys.executable
    if named := environ.get(ENV_VERIFIERS_PYTHON):
        if not Path(named).is_file():
            raise BadInputError(f"${ENV_VERIFIERS_PYTHON}: found no file {named}, accepted is a Python interpreter")
        return named
    beside = Path(f"{prefix}-verifiers/bin/python")
    return str(beside) if beside.exists() else sys.executable
