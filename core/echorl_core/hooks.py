"""Functions of a user's own, by import path ``pkg.module:name``."""

import importlib
import traceback
from typing import Any

ACCEPTED = "'pkg.module:name'"


class HookImportError(ValueError):
    """An import path leads to nothing; the message quotes it, the caller adds the field."""


def imported(path: str) -> Any:
    """The object that ``path`` names; dots in the name lead into attributes.

    Raises:
        HookImportError: not of that form, the module does not import, or it has no such name.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise HookImportError(f"found {path!r}, accepted is {ACCEPTED}")
    try:
        target = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise HookImportError(f"{path!r} does not import: {told(error)}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise HookImportError(f"module {module_name!r} has no {name!r}")
        target = getattr(target, part)
    return target


def told(error: Exception) -> str:
    """What a user's code raised, and the line that raised it."""
    trace = traceback.extract_tb(error.__traceback__)
    where = f" ({trace[-1].filename}:{trace[-1].lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"
