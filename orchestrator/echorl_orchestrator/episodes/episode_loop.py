"""One attempt at an episode: our loop over a TextEnv, or an EpisodeRunner that calls the gateway by itself."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from echorl_core.config import EnvironmentConfig
from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.chat.messages import Message, MessageError, canonical_message
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.environments.contract import Action, Limits, RunnerResult, Step
from echorl_orchestrator.episode_outcome import LARGEST, StopReason
from echorl_orchestrator.episodes.branch_verdicts import unused_turns
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import Turn
from echorl_orchestrator.workers.worker import Worker

T = TypeVar("T")
Call = Callable[..., Awaitable[Any]]


@dataclass
class Progress:
    """What is known of an attempt so far; kept when a deadline ends it."""

    reward: float | None = None
    stop: StopReason = StopReason.ERROR
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tool_s: dict[int, float] = field(default_factory=dict)
    """Seconds that the environment took after each turn, by the turn's number."""
    truncated: bool = False
    phase: str = "start"
    """What is under way, or was when an error ended it: start, reset, turn, step, run, samples."""

    def score(self, reward: float | None, metrics: dict[str, float], info: dict[str, Any]) -> None:
        """Take over what a step or a runner reported.

        Raises:
            EpisodeError: ENV, a number is not finite, or would not be as a float32.
        """
        for name, value in {"reward": reward, **metrics}.items():
            if value is not None and not abs(value) <= LARGEST:
                raise EpisodeError(ErrorKind.ENV, f"{name}: found {value}, accepted is a finite number of a float32")
        self.reward = reward if reward is not None else self.reward
        self.metrics.update(metrics)
        self.info.update(info)


def converted(value: Any, kind: type[T], what: str) -> T:
    """Data from a worker as ``kind``.

    Raises:
        EpisodeError: ENV, it does not fit.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise EpisodeError(ErrorKind.ENV, f"{what} returned an unusable {kind.__name__}: {error}") from None


class TextLoop:
    """reset, then turn and step in alternation, until one of the two ends it."""

    def __init__(
        self, worker: Worker, session: GatewaySession, config: EnvironmentConfig, progress: Progress, key: str
    ) -> None:
        self._worker = worker
        self._session = session
        self._config = config
        self._progress = progress
        self._key = key
        self._history: list[Message] = []
        self._warnings: dict[int, list[tuple[int, int]]] = {}

    async def play(self, task: dict[str, Any], *, seed: int, episode: str) -> None:
        """Play to the end; what happened stands in the progress.

        Raises:
            EpisodeError: the environment, its worker or an engine failed, or the first prompt is too long.
        """
        step = await self._called("reset", task=task, seed=seed, episode_id=episode)
        tools = step.tools
        if step.terminated or step.truncated:
            raise EpisodeError(ErrorKind.ENV, "reset ended the episode before the first model turn")
        while True:
            self._progress.phase = "turn"
            try:
                turn = await self._session.turn(self._history, tools, warnings=self._warnings)
            except PromptTooLongError as error:
                if not self._session.facts.turns:
                    raise EpisodeError(ErrorKind.OVERLONG, str(error)) from None
                return self._end(StopReason.PROMPT_TOO_LONG)
            except MessageError as error:
                raise EpisodeError(ErrorKind.ENV, str(error)) from None
            self._add([turn.message])
            step = await self._stepped(turn)
            if step.terminated:
                return self._end(StopReason.TERMINATED)
            if step.truncated:
                return self._end(StopReason.TRUNCATED)
            if turn.number + 1 == self._config.max_turns:
                return self._end(StopReason.MAX_TURNS)

    def _end(self, stop: StopReason) -> None:
        self._progress.stop = stop
        self._progress.truncated = stop is not StopReason.TERMINATED

    async def _stepped(self, turn: Turn) -> Step:
        started = time.monotonic()
        step = await self._called("step", action=_plain(turn.action))
        self._progress.tool_s[turn.number] = time.monotonic() - started
        return step

    async def _called(self, op: str, **args: Any) -> Step:
        self._progress.phase = op
        step = converted(await self._worker.call(op, episode=self._key, **args), Step, op)
        self._progress.score(step.reward, step.metrics, step.info)
        for span in step.warnings:
            if not 0 <= span.message < len(step.messages):
                raise EpisodeError(ErrorKind.ENV, f"{op}: warnings: there is no message {span.message}")
            self._warnings.setdefault(len(self._history) + span.message, []).append((span.start, span.end))
        try:
            # Those of the last step reach no session, but the records.
            for number, message in enumerate(step.messages, start=len(self._history)):
                canonical_message(message, number)
        except MessageError as error:
            raise EpisodeError(ErrorKind.ENV, str(error)) from None
        self._add(step.messages)
        return step

    def _add(self, messages: list[dict[str, Any]]) -> None:
        self._history.extend(messages)
        self._progress.messages.extend(messages)


def _plain(action: Action) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(action)
    return plain


_OF_THE_AGENT = (ErrorKind.ENV, ErrorKind.AGENT)
"""Failures that an engine's may have caused, of which the agent was told."""


async def run_runner(
    worker: Worker,
    session: GatewaySession,
    config: EnvironmentConfig,
    progress: Progress,
    *,
    task: dict[str, Any],
    gateway_url: str,
) -> None:
    """Let the environment's runner play against the gateway.

    Raises:
        EpisodeError: the engine's failure if one made the runner give up, else the runner's own.
    """
    limits = Limits(config.max_turns, config.episode_timeout_s, session.spec.max_model_len)
    key = session.spec.key
    progress.phase = "run"
    try:
        answer = await worker.call(
            "run",
            episode=key,
            task=task,
            base_url=f"{gateway_url}/s/{key}/v1",
            session=key,
            model=SERVED_MODEL_NAME,
            limits=msgspec.to_builtins(limits),
        )
    except EpisodeError as error:
        facts = session.facts
        if error.kind in _OF_THE_AGENT and facts.failure is not None:
            raise facts.failure from error
        if error.kind is ErrorKind.ENV and facts.prompt_too_long and not facts.turns:
            raise EpisodeError(ErrorKind.OVERLONG, error.message) from error
        raise
    finally:
        progress.messages = _main_messages(session)
    result = converted(answer, RunnerResult, "run")
    if result.agent_failure is not None and session.facts.failure is not None:
        raise session.facts.failure
    progress.score(result.reward, result.metrics, result.info)
    if not any(place.delivered for place in session.history.turns):
        kind = ErrorKind.OVERLONG if session.facts.prompt_too_long else ErrorKind.ENV
        why = f"; {result.agent_failure}" if result.agent_failure else ""
        raise EpisodeError(kind, f"the runner finished without a model turn{why}")
    progress.stop = _runner_stop(session, result)
    progress.truncated = progress.stop is not StopReason.TERMINATED


def _runner_stop(session: GatewaySession, result: RunnerResult) -> StopReason:
    if session.facts.prompt_too_long:
        return StopReason.PROMPT_TOO_LONG
    if result.truncated:
        return StopReason.TRUNCATED
    return StopReason.MAX_TURNS if session.facts.turn_limit_hit else StopReason.TERMINATED


def _main_messages(session: GatewaySession) -> list[dict[str, Any]]:
    """Of the branch that the last used turn belongs to: a title that an agent asks for at the end is not its work."""
    history = session.history
    unused = unused_turns(history.turns)
    used = [place.branch for place in history.turns if place.number not in unused]
    return history.branches[used[-1]].messages if used else []
