"""Imports a user's functions as an environment worker would: ``import_check.py REQUEST ANSWER`` (two JSON files).

Run with ``-P`` from a foreign folder, in the orchestrator's Python. The request holds ``path`` (folders for sys.path)
and ``imports`` (``pkg.module:name``); the answer maps each of those that fail to the reason.
"""

import importlib
import json
import sys
from pathlib import Path


def problem(import_path: str) -> str | None:
    """Why an import path does not lead to something callable; None if it does."""
    module, _, name = import_path.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's module may raise anything; it is the answer
        return f"{type(error).__name__}: {error}"
    return None if callable(found) else f"is a {type(found).__name__}, and cannot be called"


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = request["path"]
    problems = {entry: problem(entry) for entry in request["imports"]}
    Path(sys.argv[2]).write_text(json.dumps({entry: why for entry, why in problems.items() if why is not None}))


if __name__ == "__main__":
    main()
