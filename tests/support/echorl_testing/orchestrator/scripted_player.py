"""A player that plays episodes by script, samples made by hand, configs around them: no engines, no environments."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echorl_core.config import BatchConfig, EnvironmentConfig
from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs
from echorl_orchestrator.advantages.length_cost import environment_tokens
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.filters.filter_hook import FilterEpisode

C, A, E, W = TokenRole.CONTEXT, TokenRole.ACTION, TokenRole.ENV_OUTPUT, TokenRole.WARNING


def sample(
    roles: list[TokenRole],
    *,
    episode: str = "e",
    branch: int = 0,
    version: int = 0,
    environment: str = "terminal",
    alpha: float = 0.05,
    tokens: list[int] | None = None,
) -> Sample:
    """One token per role; actions train RL, environment output trains ECHO with ``alpha``, token 0 nothing."""
    role = np.array(roles, np.uint8)
    count = len(roles)
    action, output = role == A, role == E
    action[0] = output[0] = False
    return Sample(
        episode=episode,
        branch=branch,
        group=episode,
        environment=environment,
        task_key=1,
        attempt=1,
        token_ids=np.array(tokens if tokens is not None else range(count), np.int32),
        role=role,
        message_role=np.zeros(count, np.uint8),
        scaffold=np.zeros(count, np.uint8),
        tool=np.full(count, -1, np.int16),
        logprobs=np.where(action, -0.5, 0.0).astype(np.float32),
        version_low=np.where(action, version, -1).astype(np.int32),
        version_high=np.where(action, version, -1).astype(np.int32),
        turn=np.where(action, 0, -1).astype(np.int32),
        rl_weight=action.astype(np.float32),
        ce_weight=(alpha * output).astype(np.float32),
        advantage=np.zeros(count, np.float32),
        temperature=np.ones(count, np.float32),
    )


def outcome(
    episode: str = "e",
    *,
    reward: float | None = 1.0,
    version: int = 0,
    error: ErrorKind | None = None,
    samples: list[Sample] | None = None,
    environment: str = "terminal",
) -> EpisodeOutcome:
    """A finished episode: six tokens of which two are actions and two environment output, unless samples are given."""
    made = [sample([C, C, A, A, E, E], episode=episode, version=version, environment=environment)]
    kept = [] if error is not None else made if samples is None else samples
    return EpisodeOutcome(
        episode=episode,
        environment=environment,
        task_key=1,
        samples=kept,
        reward=None if error else reward,
        stop=StopReason.ERROR if error else StopReason.TERMINATED,
        error_kind=error,
        error=None if error is None else f"scripted {error}",
        num_turns=1,
        sampled_tokens=2,
        environment_tokens=environment_tokens(kept),
        kept_tokens=2,
        kept_branches=len(kept),
        version_low=version,
        version_high=version,
    )


def environment(name: str = "terminal", **fields: Any) -> EnvironmentConfig:
    """An environment that only has a name."""
    return EnvironmentConfig(name=name, type="builtin:terminal", **fields)


def batch_config(**fields: Any) -> BatchConfig:
    """Groups of 2, batches of 4, on policy."""
    defaults = {"group_size": 2, "batch_size": 4, "max_staleness": 0, "seq_len": 64, "num_ranks": 1}
    return BatchConfig(**{**defaults, **fields})


@dataclass
class ScriptedPlayer:
    """Plays by ``script``: a call ``(episode, group, version) -> EpisodeOutcome``.

    While ``gate`` is unset, episodes hang. ``version`` is what the engines are said to hold.
    """

    script: Callable[[str, str, int], EpisodeOutcome] = lambda episode, group, version: outcome(
        episode, version=version, reward=float(episode[-1] == "0")
    )
    version: int = 0
    num: int = 16
    scores: Callable[[list[EpisodeOutcome]], list[float] | None] = lambda outcomes: None
    own_advantages: Callable[[AdvantageInputs], list[float]] = lambda inputs: [0.0] * len(inputs.episodes)
    own_filters: Callable[[int, FilterEpisode], bool] = lambda index, episode: False
    """By index of the rule."""
    asked: list[AdvantageInputs] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    playing: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Environment and version at the start, by episode in flight."""
    most: Counter[str] = field(default_factory=Counter)
    """Highest number of episodes in flight so far, by environment."""
    played: list[EpisodeOutcome] = field(default_factory=list)
    started: list[tuple[str, int, int]] = field(default_factory=list)
    """Group, task index and seed of every episode that was started."""
    temperatures: dict[str, float] = field(default_factory=dict)
    """By episode that was started."""
    cancelled: list[str] = field(default_factory=list)
    rooms: asyncio.Semaphore | None = None
    """One is taken for every episode, and none is given back."""
    across: list[str] = field(default_factory=list)
    """Episodes that were in flight while ``update`` was called."""

    def __post_init__(self) -> None:
        self.gate.set()

    def update(self, version: int) -> None:
        """The engines hold another version from now on."""
        self.across.extend(self.playing)
        self.version = version

    async def num_tasks(self, environment: EnvironmentConfig) -> int:
        return self.num

    @contextlib.asynccontextmanager
    async def room(self, environment: EnvironmentConfig) -> AsyncIterator[None]:
        if self.rooms is not None:
            await self.rooms.acquire()
        yield

    async def task(self, environment: EnvironmentConfig, index: int) -> dict[str, Any]:
        return {"key": index}

    async def play(
        self, environment: EnvironmentConfig, task: dict[str, Any], *, episode: str, group: str, seed: int, attempt: int
    ) -> EpisodeOutcome:
        version = self.version
        self.started.append((group, task["key"], seed))
        self.temperatures[episode] = environment.sampling.temperature
        self.playing[episode] = (environment.name, version)
        running = Counter(name for name, _ in self.playing.values())
        self.most |= running
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            found = self.script(episode, group, version)
            found.environment = environment.name
        except asyncio.CancelledError:
            self.cancelled.append(episode)
            raise
        finally:
            del self.playing[episode]
        self.played.append(found)
        return found

    async def score_group(
        self, environment: EnvironmentConfig, task: dict[str, Any], outcomes: list[EpisodeOutcome]
    ) -> list[float] | None:
        return self.scores(outcomes)

    async def advantages(self, environment: EnvironmentConfig, inputs: AdvantageInputs) -> list[float]:
        self.asked.append(inputs)
        return self.own_advantages(inputs)

    async def matches(
        self, environment: EnvironmentConfig, index: int, episodes: Sequence[FilterEpisode]
    ) -> list[bool]:
        return [self.own_filters(index, episode) for episode in episodes]


async def eventually(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Let the loop turn until ``condition`` holds."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 - whatever comes about need not be told
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"did not come about in {deadline_s} s: {what}") from None
