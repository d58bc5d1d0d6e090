"""Environments with ``load_environment``: of one turn, of several, with tools. Rewarded by their rubric.

The library scores what it cannot: a reward function that raises counts 0, and so does an episode whose engine failed.
Here neither is scored.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import datasets
import httpx
import openai
from verifiers.legacy import errors
from verifiers.legacy.clients import OpenAIChatCompletionsClient
from verifiers.legacy.envs.environment import Environment as LibraryEnvironment
from verifiers.legacy.rubrics.rubric import Rubric
from verifiers.legacy.utils.env_utils import load_environment

from echorl_core import hooks
from echorl_orchestrator.environments.contract import Environment, Limits, RunnerResult
from echorl_orchestrator.environments.numbered_tasks import NumberedTasks
from echorl_orchestrator.environments.verifiers.loop import SharedLoop
from echorl_orchestrator.environments.verifiers.model_calls import TURN_LIMIT, failed_call
from echorl_orchestrator.failures import AgentError, BadInputError, HarnessError, InfrastructureError

_BULKY = frozenset({"prompt", "completion", "trajectory", "input", "task", "tool_defs", "timing"})
"""Fields of a rollout's state that records have in another form."""
_failed: ContextVar[list[tuple[str, Exception]]] = ContextVar("failed")
"""Reward functions that raised in this episode."""


def build(name: str, module: str, args: dict[str, Any], *, evaluation: bool) -> Environment:
    """The environment that ``load_environment(**args)`` of ``module`` returns, with the tasks of its data set.

    Raises:
        BadInputError: it cannot be loaded, has no data set of the wanted kind, or nothing that rewards one episode.
    """
    datasets.disable_progress_bars()
    try:
        made = load_environment(module, **args)
    except Exception as error:  # it may raise anything
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise BadInputError(f"{name}: load_environment failed: {hooks.told(cause).strip()}") from error
    if made.message_type != "chat":
        raise BadInputError(f"{name}: found message_type {made.message_type!r}, accepted is 'chat'")
    _check_rewards(name, made)
    try:
        rows = made.get_eval_dataset() if evaluation else made.get_dataset()
    except Exception as error:
        kind = "eval_dataset or dataset" if evaluation else "dataset"
        raise BadInputError(f"{name}: it has no {kind} that can be read: {hooks.told(error)}") from error
    return Environment(NumberedTasks(0, len(rows)), runner=ClassicRunner(name, made, rows))


def _rubrics(rubric: Rubric) -> Iterator[Rubric]:
    """The rubrics that a group, or an environment made of several, is put together from."""
    members = [env.rubric for env in getattr(rubric, "env_map", {}).values()]
    inner = [*getattr(rubric, "rubrics", ()), *members]
    for one in inner:
        yield from _rubrics(one)
    if not inner:
        yield rubric


def _check_rewards(name: str, made: LibraryEnvironment) -> None:
    """Have every function of the rubric tell when it fails.

    Raises:
        BadInputError: none has a weight, or one needs a whole group.
    """
    rubrics = list(_rubrics(made.rubric))
    # Environments made of several do not say it of their members.
    in_groups = any(rubric.has_group_rewards or rubric.has_advantages for rubric in rubrics)
    if in_groups or made.requires_group_rollouts or made.provides_advantages:
        raise BadInputError(
            f"{name}: its rubric scores whole groups, accepted is one that scores each episode by itself"
        )
    found, scoring = [], False
    for rubric in rubrics:
        found += [getattr(function, "__name__", repr(function)) for function in rubric.funcs]
        # One that does not add up functions says itself what it scores.
        scoring = scoring or type(rubric).score_rollout is not Rubric.score_rollout
        for place, (function, weight) in enumerate(zip(rubric.funcs, rubric.weights, strict=False)):
            if weight:
                scoring = True
                rubric.funcs[place] = _watched(function)
    if not scoring or not made.score_rollouts:
        why = f"of weight 0: {', '.join(found) or 'nothing'}" if made.score_rollouts else "score_rollouts is off"
        raise BadInputError(f"{name}: found no reward ({why}), accepted is a rubric with a reward function")


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            _failed.get().append((getattr(function, "__name__", repr(function)), error))
            raise

    return watched


class ClassicRunner:
    """Plays episodes of one environment; an ``EpisodeRunner``."""

    def __init__(self, name: str, made: LibraryEnvironment, rows: Any) -> None:
        self._name, self._made, self._rows = name, made, rows
        self._loop = SharedLoop(name)
        # Episodes share its connections; the address and the key are each one's own.
        self._client = openai.AsyncOpenAI(base_url="http://localhost", api_key="none", timeout=None, max_retries=0)

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """One rollout and its score.

        Raises:
            InfrastructureError, HarnessError, AgentError: what failed; nothing is scored.
        """
        client = self._client.with_options(base_url=base_url, api_key=session)
        return await self._loop.run(self._rollout(self._rows[task["key"]], client, model))

    async def _rollout(self, row: Any, client: openai.AsyncOpenAI, model: str) -> RunnerResult:
        failures: list[tuple[str, Exception]] = []
        _failed.set(failures)
        state = await self._made.rollout(row, OpenAIChatCompletionsClient(client), model, {})
        at_limit, silent = self._judged(state.get("error"))
        if state.get("prompt_too_long") and not state["trajectory"]:
            return RunnerResult(None, truncated=True)
        try:
            await self._made.rubric.score_rollout(state)
        finally:
            await self._made.rubric.cleanup(state)
        for function, error in failures:
            told = f"{self._name}: reward function {function}: {hooks.told(error)}"
            if silent:
                raise AgentError(f"the model said nothing, of which {told}")
            if _is_of_network(error):
                raise InfrastructureError(told)
            raise HarnessError(told)
        truncated = bool(state.get("is_truncated") or state.get("timed_out")) and not at_limit
        return RunnerResult(
            state["reward"], dict(state.get("metrics") or {}), _plain(state), truncated, "no answer" if silent else None
        )

    def _judged(self, error: BaseException | None) -> tuple[bool, bool]:
        """Of an error that ended the rollout: whether it is ``maxTurns``, and whether the model said nothing.

        Raises:
            InfrastructureError, HarnessError, AgentError: of all others.
        """
        if error is None:
            return False, False
        if isinstance(error, errors.EmptyModelResponseError):
            return False, True
        told = f"{self._name}: {_chain(error)}"
        refused = next((one for one in _causes(error) if isinstance(one, openai.APIStatusError)), None)
        if isinstance(error, errors.ModelError) and refused is not None:
            if refused.code == TURN_LIMIT:
                return True, False
            raise failed_call(told, refused.status_code)
        if isinstance(error, errors.InfraError) or _is_of_network(error):
            raise InfrastructureError(told)
        if isinstance(error, errors.ToolParseError):
            raise AgentError(told)
        raise HarnessError(told)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _chain(error: BaseException) -> str:
    return " <- ".join(f"{type(one).__name__}: {one}" for one in _causes(error))


_UNREACHABLE = (
    *(openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError),
    *(httpx.TransportError, ConnectionError, TimeoutError),
)


def _is_of_network(error: BaseException) -> bool:
    """Somebody else could not be reached: a judge, a service of the environment, the gateway."""
    return any(isinstance(one, _UNREACHABLE) for one in _causes(error))


def _plain(state: Any) -> dict[str, Any]:
    """Fields of a rollout's state that records can hold, for ``stateColumns``."""
    found = {}
    for name, value in {**state.get("input", {}), **state}.items():
        if name not in _BULKY:
            try:
                json.dumps(value)
            except (TypeError, ValueError, RecursionError):
                continue
            found[name] = value
    return found
