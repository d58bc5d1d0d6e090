"""Writes the table of built-in environments: ``python -m tools.builtin_environments FILE``.

Every module of ``echorl_orchestrator.environments.builtin`` is one. Manifests name it after ``builtin:``, with hyphens;
its ``KIND`` is the field of ``Environment`` that its ``build`` sets.
"""

import sys
from importlib import import_module
from pathlib import Path

from echorl_orchestrator.environments import builtin
from echorl_orchestrator.environments.loader import builtin_names

_HEAD = '''\
"""Built-in environments by name: which field of ``Environment`` each sets.

Generated from ``orchestrator/echorl_orchestrator/environments/builtin`` by ``make generate``; a check fails when it is
stale.
"""

BUILTIN_ENVIRONMENTS: dict[str, str] = {
'''


def table() -> str:
    """The generated module."""
    kinds = {name: import_module(f"{builtin.__name__}.{name.replace('-', '_')}").KIND for name in builtin_names()}
    rows = (f'    "{name}": "{kind}",\n' for name, kind in kinds.items())
    return f"{_HEAD}{''.join(rows)}}}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table())
