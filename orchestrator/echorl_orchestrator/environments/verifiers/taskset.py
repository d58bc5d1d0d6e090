"""Environments of ``verifiers.v1``: a task set, played by one agent in a harness, rewarded by its tasks."""

import asyncio
import contextlib
import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from verifiers import v1
from verifiers.v1.utils.loaders import harness_class

from echorl_core import hooks
from echorl_orchestrator.environments.contract import Environment, Limits, RunnerResult
from echorl_orchestrator.environments.numbered_tasks import NumberedTasks
from echorl_orchestrator.environments.verifiers.loop import SharedLoop
from echorl_orchestrator.environments.verifiers.model_calls import failed_call
from echorl_orchestrator.failures import BadInputError, ClassedError, HarnessError, InfrastructureError

_HARNESS = "echorl_chat"
"""Id under which the library finds our harness."""
_DEFAULT = "bash"
"""The library's harness where a task set brings none; it runs what the model writes on this machine."""
_UNCONTAINED = "accepted is what runs as programs beside the worker, since no containers of the library are started"
_OF_INFRASTRUCTURE = frozenset({"SandboxError", "TunnelError", "InterceptionError"})
_PROVIDER = "ProviderError"
_NO_ROOM = "context_length"


class TasksetArgs(BaseModel):
    """Arguments of ``verifiers:<id>`` where the id is a task set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    taskset: dict[str, Any] = {}
    """The task set's own configuration."""
    harness: dict[str, Any] = {}
    """The agent's; its ``id`` is ``null`` (a chat with the task's tools) unless the task set brings a harness."""
    num_tasks: int | None = Field(default=None, ge=1)
    """The first tasks alone; an infinite task set needs it."""


def build(name: str, identity: str, module: ModuleType, args: dict[str, Any]) -> Environment:
    """The environment of the task set that ``module`` exports.

    Raises:
        BadInputError: there is none, it cannot be loaded, several agents take part, or they need containers.
    """
    checked = TasksetArgs.model_validate(args)
    exported = [getattr(module, one, None) for one in getattr(module, "__all__", ())]
    if not any(isinstance(one, type) and issubclass(one, v1.Taskset) for one in exported):
        raise BadInputError(
            f"{name}: module {module.__name__} has neither load_environment nor a Taskset in __all__, accepted is an "
            "environment of verifiers"
        )
    # Servers of its tools are programs that import its module.
    ours = (entry for entry in sys.path if entry and not entry.startswith((sys.prefix, sys.base_prefix)))
    os.environ["PYTHONPATH"] = os.pathsep.join(ours)
    try:
        made = _made(name, identity, checked)
        _check_harness(name, identity, made)
        tasks = _tasks(name, made.taskset, checked.num_tasks)
        for task in tasks:
            _check_task(name, task)
    except BadInputError:
        raise
    except Exception as error:  # it may raise anything
        raise BadInputError(f"{name}: it cannot be loaded: {hooks.told(error)}") from error
    return Environment(NumberedTasks(0, len(tasks)), runner=TasksetRunner(name, made, tasks))


def _made(name: str, identity: str, args: TasksetArgs) -> v1.Env:
    if not issubclass(v1.env_config_type(identity), v1.SingleAgentEnvConfig):
        raise BadInputError(f"{name}: several agents take part in it, accepted are environments of one")
    # The library finds harnesses by names of modules at the top alone.
    sys.modules[_HARNESS] = importlib.import_module(f"{__package__}.chat_harness")
    asked = args.harness.get("id")
    ours = asked in {"null", None} and (asked == "null" or v1.default_harness_id(identity) == _DEFAULT)
    agent: dict[str, Any] = {"runtime": {"type": "subprocess"}}
    if ours or args.harness:
        agent["harness"] = {**args.harness, **({"id": _HARNESS} if ours else {})}
    taskset = {**args.taskset, "id": identity}
    return v1.load_environment(v1.resolve_env_config({"taskset": taskset, "agent": agent}))


def _check_harness(name: str, identity: str, made: v1.Env) -> None:
    # The library would say it of every episode, and send people to its own options.
    chosen = made.config.agent.harness
    harness = v1.default_harness_id(identity) if chosen is None else chosen.id
    if harness_class(harness).NEEDS_CONTAINER:
        raise BadInputError(
            f"{name}: found harness {harness!r}, which needs a container (NEEDS_CONTAINER); {_UNCONTAINED}"
        )


def _check_task(name: str, task: v1.Task) -> None:
    data = task.data
    wanted = {
        "a container (NEEDS_CONTAINER)": type(task).NEEDS_CONTAINER,
        f"the image {data.image!r}": data.image is not None,
        "a network policy": "*" not in data.network_allow or bool(data.network_block),
    }
    for what, wants in wanted.items():
        if wants:
            raise BadInputError(f"{name}: found task {data.idx!r}, which needs {what}; {_UNCONTAINED}")


def _tasks(name: str, taskset: v1.Taskset, count: int | None) -> Sequence[v1.Task]:
    if taskset.INFINITE and count is None:
        raise BadInputError(f"{name}: it has tasks without end; found no args.num_tasks, accepted is how many to play")
    return list(itertools.islice(iter(taskset), count))


class TasksetRunner:
    """Plays episodes of one environment; an ``EpisodeRunner``."""

    def __init__(self, name: str, made: v1.Env, tasks: Sequence[v1.Task]) -> None:
        self._name, self._made, self._tasks = name, made, tasks
        self._loop = SharedLoop(name)
        self._started = asyncio.Lock()
        self._servers: contextlib.AsyncExitStack | None = None

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """One episode.

        Raises:
            InfrastructureError, HarnessError, AgentError: what failed; nothing is scored.
        """
        # The library keeps a client for each address that it was ever given; the session is told by a header.
        client = v1.EvalClientConfig(base_url=base_url.replace(f"/s/{session}/", "/"), api_key_var="ECHORL_NO_KEY")
        self._made.config.agent.max_turns = limits.max_turns
        return await self._loop.run(
            self._episode(self._tasks[task["key"]], v1.ModelContext(model=model, client=client), session)
        )

    async def _episode(self, task: v1.Task, context: v1.ModelContext, session: str) -> RunnerResult:
        await self._serve()

        def own(trace: v1.Trace) -> None:
            # What the library sends as X-Session-ID.
            trace.id = session

        episode = await self._made.run_episode(task, context, on_trace=own)
        trace = episode.traces[0] if episode.traces else None
        if trace is not None and trace.stop_condition == _NO_ROOM and not trace.num_turns:
            return RunnerResult(None, truncated=True)
        if not episode.ok or trace is None:
            raise self._failure([*episode.errors, *(trace.errors if trace else ())])
        found = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        if not found:
            raise HarnessError(f"{self._name}: the task gave no reward")
        metrics = {name: reward.score for name, reward in found.items()}
        metrics |= {name: value for name, value in trace.metrics.items() if value is not None}
        return RunnerResult(trace.reward, metrics, trace.info, trace.is_truncated)

    async def _serve(self) -> None:
        """Start what all episodes share, once."""
        async with self._started:
            if self._servers is None:
                stack = contextlib.AsyncExitStack()
                try:
                    await stack.enter_async_context(self._made.serving())
                except Exception as error:
                    raise HarnessError(f"{self._name}: its servers do not start: {hooks.told(error)}") from error
                self._servers = stack

    def _failure(self, found: Sequence[v1.Error]) -> ClassedError:
        """What the library says of an episode, as a class of ours."""
        told = f"{self._name}: {'; '.join(f'{one.type}: {one.message}' for one in found) or 'it ended without a trace'}"
        if any(one.type in _OF_INFRASTRUCTURE for one in found):
            return InfrastructureError(told)
        status = next((one.status_code for one in found if one.type == _PROVIDER), None)
        return HarnessError(told) if status is None else failed_call(told, status)
