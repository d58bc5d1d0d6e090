"""Inside a worker: the environment, and a thread for each episode on which its code runs."""

import asyncio
import inspect
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from echorl_core.config import EnvironmentConfig, HookConfig
from echorl_orchestrator.advantages.advantage_hook import FIELD, AdvantageInputs, Answer, answer
from echorl_orchestrator.environments.contract import (
    LEARNER_SEAT,
    Action,
    Environment,
    Limits,
    RunnerResult,
    SandboxedRunner,
    Slot,
    Stage,
    Step,
    TaskSource,
)
from echorl_orchestrator.environments.holdout import one_side, task_key
from echorl_orchestrator.environments.loader import load_environment, load_hook
from echorl_orchestrator.failures import AgentError, BadInputError, ClassedError, InfrastructureError
from echorl_orchestrator.filters import filter_hook
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLoss

if TYPE_CHECKING:
    from echorl_orchestrator.sandboxes.lent import Lending

Reply = Callable[[dict[str, Any]], None]
_TRACE_CHARACTERS = 4000
_CLASS_OF_LOSS: dict[SandboxLoss, type[ClassedError]] = {SandboxLoss.OVERUSED: AgentError}
"""What it says of an episode that a sandbox was lost, and nobody caught it."""


def error_of(error: BaseException) -> dict[str, Any]:
    """An exception of environment code, as it crosses to the orchestrator."""
    trace = "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]
    if isinstance(error, SandboxError):
        error = _CLASS_OF_LOSS.get(error.loss, InfrastructureError)(str(error))
    if isinstance(error, ClassedError):
        return {"message": str(error), "trace": trace, "kind": str(error.kind)}
    return {"message": f"{type(error).__name__}: {error}", "trace": trace}


class EpisodeThread:
    """Runs calls one after the other on a thread of its own, and coroutines on that thread's event loop."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._runner: asyncio.Runner | None = None
        self._running: tuple[int, asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled: set[int] = set()
        self.env: Any = None
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def submit(self, number: int, call: Callable[[], Any], reply: Reply) -> None:
        """Queue a call; ``reply`` gets its value or error."""

        def work() -> None:
            try:
                answer = {"id": number, "value": self._value(number, call)}
            except BaseException as error:
                answer = {"id": number, "error": error_of(error)}
            reply(answer)

        self._work.put(work)

    def cancel(self, number: int) -> None:
        """Cancel a call that is, or will be, awaiting. Synchronous code cannot be cancelled."""
        self._cancelled.add(number)
        running = self._running
        if running is not None and running[0] == number:
            running[1].call_soon_threadsafe(running[2].cancel)

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._work.put(None)

    def _value(self, number: int, call: Callable[[], Any]) -> Any:
        if number in self._cancelled:
            raise asyncio.CancelledError
        value = call()
        if not inspect.isawaitable(value):
            return value
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(self._awaited(number, value))

    async def _awaited(self, number: int, value: Any) -> Any:
        task = asyncio.current_task()
        if task is None or number in self._cancelled:
            raise asyncio.CancelledError
        self._running = (number, asyncio.get_running_loop(), task)
        try:
            return await value
        finally:
            self._running = None

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._runner is not None:
            self._runner.close()


def _checked(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} returned {type(value).__name__}, accepted is {kind.__name__}")
    return value


async def _awaited(value: Any, kind: type, what: str) -> Any:
    return _checked(await value, kind, what)


def _result(value: Any, kind: type, what: str) -> Any:
    return _awaited(value, kind, what) if inspect.isawaitable(value) else _checked(value, kind, what)


def _takes_sandboxes(environment: Environment) -> bool:
    runner = environment.runner
    return runner is not None and "sandboxes" in inspect.signature(runner.run).parameters


def _check_sandboxes(name: str, lending: "Lending | None") -> None:
    if lending is None:
        raise BadInputError(f"environments.{name}: it runs in sandboxes; found no spec.sandboxes, accepted is one")
    try:
        asyncio.run(lending.try_out())
    except SandboxError as error:
        raise BadInputError(f"environments.{name}: {error.message}") from error


def _check_episode_time(config: EnvironmentConfig, environment: Environment) -> None:
    if environment.check_episode_time is None:
        return
    try:
        environment.check_episode_time(config.episode_timeout_s)
    except BadInputError as error:
        raise BadInputError(f"environments.{config.name}: {error}") from None


class Host:
    """One environment and its episodes."""

    def __init__(
        self,
        config: EnvironmentConfig,
        advantage: HookConfig | None = None,
        filters: Sequence[HookConfig | None] = (),
        *,
        evaluation: bool = False,
        sandboxes: "Lending | None" = None,
    ) -> None:
        """``filters``: by the index of the run's rule; None where that one is not custom."""
        self._environment: Environment = load_environment(
            # A held out part is of the tasks that train.
            config.name,
            config.type,
            config.args,
            evaluation=evaluation and config.holdout_fraction is None,
        )
        _check_episode_time(config, self._environment)
        self._tasks: TaskSource = self._environment.tasks
        if config.holdout_fraction is not None:
            self._tasks = one_side(
                self._tasks, fraction=config.holdout_fraction, seed=config.holdout_seed, side=config.holdout_side
            )
        if len(self._tasks) == 0:
            raise BadInputError(f"environments.{config.name}: has no tasks")
        first = self._tasks[0]
        task_key(first, 0)
        self._first_seat = {LEARNER_SEAT: str(first[LEARNER_SEAT])} if LEARNER_SEAT in first else {}
        hook = config.echo.filter if config.echo else None
        self._filter = load_hook(hook, f"environments.{config.name}.echo.filter") if hook else None
        self._filter_kwargs = hook.kwargs if hook else {}
        self._advantage = load_hook(advantage, FIELD) if advantage else None
        self._advantage_kwargs = advantage.kwargs if advantage else {}
        self._filters = {
            index: (load_hook(rule, filter_hook.field(index)), rule.kwargs)
            for index, rule in enumerate(filters)
            if rule is not None
        }
        self._takes_sandboxes = _takes_sandboxes(self._environment)
        self._sandboxes = sandboxes
        if self._takes_sandboxes:
            _check_sandboxes(config.name, sandboxes)
        self._threads: dict[str, EpisodeThread] = {}

    def facts(self) -> dict[str, Any]:
        """What the orchestrator needs to know of the environment."""
        several = self._environment.multi_agent
        return {
            "num_tasks": len(self._tasks),
            "runner": self._environment.runner is not None,
            "sandboxes": self._takes_sandboxes,
            "scores_groups": self._environment.score_group is not None,
            "given": self._environment.given,
            "members": [] if several is None else list(several.members),
            "schedule": [] if several is None else msgspec.to_builtins(list(several.schedule)),
            "first_seat": self._first_seat,
        }

    def submit(self, number: int, op: str, episode: str | None, args: dict[str, Any], reply: Reply) -> None:
        """Start one call; answers through ``reply``, from another thread."""
        thread = self._threads.get(episode) if episode is not None else None
        if op == "close":
            if thread is None:
                return reply({"id": number, "value": None})
            closing = thread
            closing.submit(number, lambda: self._close(closing), reply)
            del self._threads[str(episode)]
            return closing.stop()
        owner = thread or EpisodeThread(f"{op}-{episode or number}")
        owner.submit(number, lambda: getattr(self, f"_op_{op}")(owner, **args), reply)
        if episode is None:
            owner.stop()
        else:
            self._threads[episode] = owner
        return None

    def cancel(self, number: int, episode: str | None) -> None:
        """Cancel a call of an episode, if it is awaiting."""
        thread = self._threads.get(episode) if episode is not None else None
        if thread is not None:
            thread.cancel(number)

    @staticmethod
    def _close(thread: EpisodeThread) -> Any:
        return thread.env.close() if thread.env is not None else None

    def _op_task(self, _: EpisodeThread, *, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        task_key(task, index)
        return task

    def _op_reset(self, thread: EpisodeThread, *, task: dict[str, Any], seed: int, episode_id: str) -> Any:
        thread.env = self._environment.text_env()
        return _result(thread.env.reset(task, seed=seed, episode_id=episode_id), Step, "reset")

    def _op_step(self, thread: EpisodeThread, *, action: dict[str, Any]) -> Any:
        return _result(thread.env.step(msgspec.convert(action, Action)), Step, "step")

    def _op_begin(self, thread: EpisodeThread, *, task: dict[str, Any], seed: int, episode_id: str) -> Any:
        several = self._environment.multi_agent
        if several is None:
            raise TypeError("the environment is not multi-agent")
        thread.env = several.env()
        return _result(thread.env.reset(task, seed=seed, episode_id=episode_id), Stage, "reset")

    def _op_advance(self, thread: EpisodeThread, *, slot: dict[str, Any], actions: dict[str, Any]) -> Any:
        said = msgspec.convert(actions, dict[str, Action])
        return _result(thread.env.step(msgspec.convert(slot, Slot), said), Stage, "step")

    def _op_rewards(self, thread: EpisodeThread) -> Any:
        return _result(thread.env.rewards(), dict, "rewards")

    def _op_run(
        self, _: EpisodeThread, *, task: dict[str, Any], base_url: str, session: str, model: str, limits: dict[str, Any]
    ) -> Any:
        runner = self._environment.runner
        if runner is None:
            raise TypeError("the environment has no runner")
        bounds = msgspec.convert(limits, Limits)
        told: dict[str, Any] = {"base_url": base_url, "session": session, "model": model, "limits": bounds}
        if self._takes_sandboxes:
            return self._run_with_sandboxes(cast("SandboxedRunner", runner), task, told)
        return _result(runner.run(task, **told), RunnerResult, "run")

    async def _run_with_sandboxes(self, runner: SandboxedRunner, task: dict[str, Any], told: dict[str, Any]) -> Any:
        assert self._sandboxes is not None  # noqa: S101 - checked when the environment was loaded
        async with self._sandboxes.to_episode() as lent:
            return _checked(await runner.run(task, **told, sandboxes=lent), RunnerResult, "run")

    def _op_score_group(self, _: EpisodeThread, *, task: dict[str, Any], episodes: list[dict[str, Any]]) -> Any:
        return self._environment.score_group(task, episodes)

    def _op_filter(self, _: EpisodeThread, *, record: dict[str, Any]) -> Any:
        if self._filter is None:
            raise TypeError("the environment has no filter")
        return self._filter(record, **self._filter_kwargs)

    def _op_advantages(self, _: EpisodeThread, *, inputs: dict[str, Any]) -> Answer:
        if self._advantage is None:
            raise TypeError("the run has no advantage function")
        return answer(self._advantage, self._advantage_kwargs, msgspec.convert(inputs, AdvantageInputs))

    def _op_matches(self, _: EpisodeThread, *, index: int, asked: list[dict[str, Any]]) -> filter_hook.Answer:
        function, kwargs = self._filters[index]
        return filter_hook.answer(function, kwargs, msgspec.convert(asked, list[filter_hook.FilterEpisode]))
