"""From ``type`` and ``args`` of an environment to its tasks and factory. Runs in worker processes only."""

from collections.abc import Callable
from functools import partial
from pkgutil import iter_modules
from typing import Any

from pydantic import ValidationError

from echorl_core import hooks
from echorl_core.config import HookConfig
from echorl_orchestrator.environments import builtin, contract
from echorl_orchestrator.environments.contract import Environment
from echorl_orchestrator.failures import BadInputError

_SERVERS = {
    "nemo-gym": "echorl_orchestrator.environments.nemo_gym.environment:build",
    "openenv": "echorl_orchestrator.environments.openenv.environment:build",
}
"""Behind whose address other processes play."""
_VERIFIERS = "echorl_orchestrator.environments.verifiers.environment:build"


def builtin_names() -> list[str]:
    """The built-in environments: every module of ``builtin`` is one, by its name with hyphens."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(builtin.__path__) if not module.ispkg)


def import_object(path: str, field: str) -> Any:
    """The object that ``pkg.module:name`` names.

    Raises:
        BadInputError: not of that form, the module does not import, or it has no such name.
    """
    try:
        return hooks.imported(path)
    except hooks.HookImportError as error:
        raise BadInputError(f"{field}: {error}") from error


def _factory(kind: str, field: str, *, evaluation: bool) -> Callable[..., Environment]:
    scheme, _, rest = kind.partition(":")
    known = builtin_names()
    path = rest if scheme == "import" else ""
    if scheme == "builtin" and rest in known:
        # By its path: a worker imports its own environment alone.
        path = f"{builtin.__name__}.{rest.replace('-', '_')}:build"
    if scheme in _SERVERS:
        return partial(import_object(_SERVERS[scheme], field), rest)
    if scheme == "verifiers":
        return partial(import_object(_VERIFIERS, field), rest, evaluation)
    if path:
        factory = import_object(path, field)
        if not callable(factory):
            raise BadInputError(f"{field}: {rest!r} is no function")
        return factory  # type: ignore[no-any-return]  # what it returns is checked below
    accepted = ", ".join(f"'builtin:{name}'" for name in known)
    raise BadInputError(
        f"{field}: found {kind!r}; accepted are {accepted}, 'openenv:http://HOST:PORT', "
        "'nemo-gym:http://HOST:PORT', 'verifiers:ID' and 'import:pkg.module:factory'"
    )


def load_environment(name: str, kind: str, args: dict[str, Any], *, evaluation: bool = False) -> Environment:
    """Call the factory that ``kind`` names with ``args``; with ``evaluation`` for the tasks that it has for evals.

    Raises:
        BadInputError: the factory cannot be found, refuses its arguments, or returns something else.
    """
    field = f"environments.{name}"
    factory = _factory(kind, f"{field}.type", evaluation=evaluation)
    try:
        environment = factory(**args)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'args'}: {problem['msg']}, found {problem['input']!r}"
            for problem in error.errors(include_url=False)
        )
        raise BadInputError(f"{field}.args: {problems}") from None
    except BadInputError:
        raise
    except Exception as error:
        raise BadInputError(f"{field}: {kind} raised {hooks.told(error)}") from error
    if not isinstance(environment, Environment):
        raise BadInputError(f"{field}: {kind} returned {type(environment).__name__}, accepted is types.Environment")
    several = environment.multi_agent
    if [environment.text_env, environment.runner, several, environment.given or None].count(None) != 3:
        raise BadInputError(f"{field}: {kind} must set exactly one of text_env, runner, multi_agent and given")
    if several is not None:
        found = list(contract.problems(several))
        if environment.score_group is not None:
            found.append("score_group: members of multi-agent environments are not scored by groups")
        if found:
            raise BadInputError("\n".join(f"{field}: {kind}: {one}" for one in found))
    return environment


def load_hook(hook: HookConfig, field: str) -> Callable[..., Any]:
    """The function of a hook.

    Raises:
        BadInputError: it does not resolve to something callable.
    """
    function = import_object(hook.import_path, field)
    if not callable(function):
        raise BadInputError(f"{field}: {hook.import_path!r} is no function")
    return function  # type: ignore[no-any-return]  # callable was checked; its result is checked where it is used
