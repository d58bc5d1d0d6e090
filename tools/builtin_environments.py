"""Writes the table of built-in environments: ``python -m tools.builtin_environments FILE``.

Every module of ``echorl_orchestrator.environments.builtin`` is one. Manifests name it after ``builtin:``, with hyphens;
its ``KIND`` is the field of ``Environment`` that its ``build`` sets.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from echorl_orchestrator.environments import builtin
from echorl_orchestrator.environments.loader import builtin_names

_HEAD = '''\
"""Built-in environments by name: which field of ``Environment`` each sets, and who may take part in it.

Generated from ``orchestrator/echorl_orchestrator/environments/builtin`` by ``make generate``; a check fails when it is
stale.
"""

BUILTIN_ENVIRONMENTS: dict[str, str] = {
'''
_MEMBERS = """\
BUILTIN_MEMBERS: dict[str, tuple[str, ...]] = {
"""


def table() -> str:
    """The generated module."""
    modules = {name: import_module(f"{builtin.__name__}.{name.replace('-', '_')}") for name in builtin_names()}
    kinds = (f'    "{name}": "{module.KIND}",\n' for name, module in modules.items())
    several = {name: module.build().multi_agent for name, module in modules.items() if module.KIND == "multi_agent"}
    members = (f'    "{name}": {_tuple(environment.members)},\n' for name, environment in several.items())
    return f"{_HEAD}{''.join(kinds)}}}\n{_MEMBERS}{''.join(members)}}}\n"


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(json.dumps(name) for name in names)})"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table())
