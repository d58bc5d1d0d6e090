"""What one attempt at an episode leaves behind: its samples, its record, or its error."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.advantages.length_cost import environment_tokens
from echorl_orchestrator.chat.messages import wire_message
from echorl_orchestrator.environments.holdout import task_key
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.branch_verdicts import Unused, unused_turns
from echorl_orchestrator.episodes.echo import FilterContractError, filter_input, narrow
from echorl_orchestrator.episodes.episode_loop import Progress
from echorl_orchestrator.episodes.samples import Built, Owner, build_samples
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.metrics.process_counters import UNATTRIBUTED

NOTHING = Built([], 0, 0, 0, 0)


@dataclass(frozen=True)
class EpisodeRequest:
    """The episode that is to be played."""

    environment: EnvironmentConfig
    task: dict[str, Any]
    episode: str
    group: str
    seed: int
    attempt: int

    @property
    def task_key(self) -> int | str:
        """Identity of the task.

        Raises:
            BadInputError: the task has none.
        """
        return task_key(self.task, 0)


@dataclass(frozen=True)
class EpisodeAttempt:
    """One finished attempt at an episode."""

    request: EpisodeRequest
    session: GatewaySession
    progress: Progress
    seconds: float

    @property
    def owner(self) -> Owner:
        """Whose samples the attempt makes."""
        request = self.request
        return Owner(request.episode, request.group, request.environment.name, request.task_key, request.attempt)

    @cached_property
    def unused(self) -> dict[int, Unused]:
        """Turns that do not train, and why."""
        return unused_turns(self.session.history.turns) if self.request.environment.train_branches == "used" else {}

    def built(self, max_branches: int, *, attributed: bool) -> Built:
        """The attempt's samples, before any filter."""
        request = self.request
        return build_samples(
            self.session.history.branches,
            self.session.tool_names,
            self.owner,
            reward=self.progress.reward,
            max_branches=max_branches,
            echo=request.environment.echo if attributed else None,
            unused=self.unused,
        )

    def record(self) -> dict[str, Any]:
        """The episode as filters see it, without its samples."""
        return {
            "episode": self.request.episode,
            "environment": self.request.environment.name,
            "task": self.request.task,
            "reward": self.progress.reward,
            "metrics": self.progress.metrics,
            "info": self.progress.info,
            "messages": self.progress.messages,
        }

    def outcome(self, built: Built, error: EpisodeError | None, *, unattributed: bool) -> EpisodeOutcome:
        """Samples and record; only the error's record when there is one."""
        request, progress, facts = self.request, self.progress, self.session.facts
        return EpisodeOutcome(
            episode=request.episode,
            environment=request.environment.name,
            task_key=request.task_key,
            samples=built.samples,
            reward=None if error else progress.reward,
            stop=StopReason.ERROR if error else progress.stop,
            error_kind=error.kind if error else None,
            error=error.message if error else None,
            phase=progress.phase if error else None,
            num_turns=len(facts.turns),
            sampled_tokens=facts.sampled_tokens,
            environment_tokens=environment_tokens(built.samples),
            kept_tokens=built.kept_tokens,
            kept_branches=len(built.samples),
            dropped_branches=built.dropped_branches,
            unused_branches=built.unused_branches,
            unattributed=unattributed,
            version_low=built.version_low,
            version_high=built.version_high,
            truncated=progress.truncated,
            metrics=progress.metrics,
            info={name: progress.info[name] for name in request.environment.state_columns if name in progress.info},
            messages=[wire_message(message) for message in progress.messages],
            conversations=self._conversations(),
            turns=self._timeline(),
            seconds=self.seconds,
        )

    def _conversations(self) -> list[dict[str, Any]]:
        """Every branch's messages, where there are several, and why its last turn does not train."""
        branches = self.session.history.branches
        if len(branches) < 2:
            return []
        last = {place.branch: place.number for place in self.session.history.turns}
        return [
            {
                "branch": branch.number,
                "unused": self.unused.get(last[branch.number]),
                "messages": [wire_message(message) for message in branch.messages],
            }
            for branch in branches
        ]

    def _timeline(self) -> list[dict[str, Any]]:
        """Turns and aborted calls in the order of their start."""
        turns: list[dict[str, Any]] = [
            {
                "start_s": turn.start_s,
                "end_s": turn.end_s,
                "tool_s": self.progress.tool_s.get(turn.number, 0.0),
                "tokens": turn.completion_tokens,
                "aborted": False,
                "branch": turn.branch,
                "unused": self.unused.get(turn.number),
                "truncated": turn.action.truncated,
                "malformed": turn.malformed,
                "asked": dict(self.session.facts.asked.get(turn.number, {})),
            }
            for turn in self.session.facts.turns
        ]
        aborted = [
            {"start_s": start, "end_s": end, "tool_s": 0.0, "tokens": 0, "aborted": True}
            for start, end in self.session.facts.aborted
        ]
        return sorted([*turns, *aborted], key=lambda turn: float(turn["start_s"]))


class SampleBuilder:
    """Makes the samples of attempts, with what the environment's ECHO filter leaves of them."""

    def __init__(self, max_branches: int, *, attributed: bool, call: Callable[..., Awaitable[Any]]) -> None:
        """``attributed``: the codec knows where tokens come from. ``call``: of the environment's workers."""
        self._max_branches, self._attributed, self._call = max_branches, attributed, call

    def unattributed(self, played: EpisodeAttempt) -> bool:
        """Whether the attempt gets no ECHO because nobody knows where its tokens come from."""
        return played.request.environment.echo is not None and not self._attributed

    async def built(self, played: EpisodeAttempt) -> tuple[Built, bool]:
        """The attempt's samples, and ``unattributed``.

        Raises:
            EpisodeError: ENV: the filter failed; SANDBOX, TIMEOUT: it could not be asked.
        """
        built = await self._filtered(played)
        if unattributed := self.unattributed(played):
            UNATTRIBUTED.inc()
        return built, unattributed

    async def _filtered(self, played: EpisodeAttempt) -> Built:
        environment = played.request.environment
        built = played.built(self._max_branches, attributed=not self.unattributed(played))
        if environment.echo is None or environment.echo.filter is None or not built.samples:
            return built
        keep = await self._call(environment, "filter", record=filter_input(built.samples, played.record()))
        try:
            return replace(built, samples=narrow(built.samples, keep))
        except FilterContractError as error:
            raise EpisodeError(ErrorKind.ENV, str(error)) from None
