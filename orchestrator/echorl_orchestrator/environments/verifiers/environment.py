"""From ``verifiers:<id>`` to an environment: finds the id's module, and which generation of the library it is of."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from echorl_core import hooks
from echorl_orchestrator.environments.contract import Environment
from echorl_orchestrator.failures import BadInputError


def build(identity: str, evaluation: bool, /, **args: Any) -> Environment:  # noqa: FBT001 - given by position alone
    """The environment ``identity``, as the library names it: ``name``, ``owner/name`` or ``owner/name@version``.

    Args:
        identity: the part of the type after ``verifiers:``.
        evaluation: play the tasks that it has for evals.
        args: of ``load_environment``, or ``taskset``, ``harness`` and ``num_tasks``.

    Raises:
        BadInputError: the library or the environment is not there or cannot be loaded, or nothing rewards it.
    """
    name = f"verifiers:{identity}"
    if importlib.util.find_spec("verifiers") is None:
        raise BadInputError(
            f"{name}: found no library verifiers in {sys.prefix}; accepted is a Python environment made from "
            "requirements/env-verifiers.txt (docs/environments.md)"
        )
    with _no_handlers():
        module = _module(identity, name)
        if hasattr(module, "load_environment"):
            if not _has("verifiers.legacy"):
                raise BadInputError(
                    f"{name}: it has load_environment, which verifiers {importlib.metadata.version('verifiers')} no "
                    "longer plays; accepted is verifiers 0.3.1"
                )
            return _generation("classic")(name, module.__name__, args, evaluation=evaluation)
        return _generation("taskset")(name, identity, module, args)


def _generation(module: str) -> Callable[..., Environment]:
    # Seconds of imports, and either may be gone from the library.
    build: Callable[..., Environment] = importlib.import_module(f"{__package__}.{module}").build
    return build


@contextlib.contextmanager
def _no_handlers() -> Iterator[None]:
    """Environments of the library handle signals, which a worker does not leave to them and another thread may not."""
    before = signal.signal
    signal.signal = lambda *_: None
    try:
        yield
    finally:
        signal.signal = before


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _module(identity: str, name: str) -> ModuleType:
    """The module that the library itself would import for the id."""
    bare = identity.rpartition("/")[2].partition("@")[0].replace("-", "_")
    # Its own task sets first: packages that they are about have the same names. Not by a spec, which would import it.
    places = importlib.import_module("verifiers").__path__
    if any(Path(place, "v1", "tasksets", bare.lower()).is_dir() for place in places):
        found: str | None = f"verifiers.v1.tasksets.{bare.lower()}"
    else:
        found = next((path for path in (bare, bare.lower()) if _has(path)), None)
    if found is None:
        raise BadInputError(
            f"{name}: found no module {bare} in {sys.prefix} or spec.code, accepted is an environment that is "
            f"installed: {', '.join(_installed()) or 'there is none'}"
        )
    try:
        return importlib.import_module(found)
    except Exception as error:  # it may raise anything
        raise BadInputError(f"{name}: module {found} does not import: {hooks.told(error)}") from error


def _installed() -> list[str]:
    """Distributions that are made for the library."""
    needs = re.compile(r"verifiers\b", re.IGNORECASE)
    distributions = importlib.metadata.distributions()
    return sorted(one.name for one in distributions if any(needs.match(other) for other in one.requires or ()))
