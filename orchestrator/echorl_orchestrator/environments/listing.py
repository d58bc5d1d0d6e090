"""Writes the table of built-in environments: ``python -m echorl_orchestrator.environments.listing FILE``.

A module here is one if it has a ``NAME``, which manifests say after ``builtin:``, a ``KIND``, which is the field of
``types.Environment`` that it sets, and a ``build``, its factory.
"""

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

_HEAD = '''\
"""Built-in environments, by name: the module, and which field of ``Environment`` it sets.

Generated from ``orchestrator/echorl_orchestrator/environments`` by ``make generate``; a check fails when it is stale.
"""

BUILTIN_ENVIRONMENTS: dict[str, tuple[str, str]] = {
'''


def listed() -> dict[str, tuple[str, str]]:
    """Module and kind by name."""
    package = import_module(__package__ or "")
    modules = (import_module(found.name) for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    built_in = (module for module in modules if hasattr(module, "build"))
    return {module.NAME: (module.__name__, module.KIND) for module in sorted(built_in, key=lambda one: one.NAME)}


def table() -> str:
    """The generated module."""
    rows = (f'    "{name}": ("{module}", "{kind}"),\n' for name, (module, kind) in listed().items())
    return f"{_HEAD}{''.join(rows)}}}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table())
