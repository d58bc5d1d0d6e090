"""Imports a user's functions as an environment worker would: ``import_check.py REQUEST ANSWER`` (two JSON files).

Run with ``-P`` from a foreign folder, in the orchestrator's Python. The request holds ``parent`` (the process id of who
asks, with whom this ends: an import may hang), ``path`` (folders for sys.path), ``imports`` (``pkg.module:name``) and
``elsewhere`` (packages that only the role has which will import them: a module that stops for want of one is taken for
good); the answer maps each of those that fail to the reason.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from echorl_core.tether import die_with_parent


def problem(import_path: str, elsewhere: Sequence[str] = ()) -> str | None:
    """Why an import path does not lead to something callable; None if it does, as far as can be told here."""
    module, _, name = import_path.partition(":")
    try:
        target = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        return None if missing in elsewhere else f"{type(error).__name__}: {error}"
    except Exception as error:  # a user's module may raise anything; it is the answer
        return f"{type(error).__name__}: {error}"
    return None if callable(target) else f"is a {type(target).__name__}, and cannot be called"


def main() -> None:
    """Read the request in the file that is named first, and write why its imports fail to the second."""
    request = json.loads(Path(sys.argv[1]).read_text())
    die_with_parent(request["parent"])
    sys.path[:0] = request["path"]
    problems = {entry: problem(entry, request["elsewhere"]) for entry in request["imports"]}
    Path(sys.argv[2]).write_text(json.dumps({entry: why for entry, why in problems.items() if why is not None}))


if __name__ == "__main__":
    main()
