"""What passes between the orchestrator's parts: generations, turns, episodes, and the protocols of environments.

    scheduler --(task)--> episode loop --(messages)--> gateway session --(token ids)--> engine pool
        ^                       |
        +--- EpisodeOutcome ----+

Parts depend on these types and protocols, not on each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from echorl_core.config import SamplingConfig
from echorl_core.names import SERVED_MODEL_NAME
from echorl_core.wire import Sample
from echorl_orchestrator.environments.contract import MultiAgent

Message = Mapping[str, Any]
"""An OpenAI chat message: role, content, and tool_calls, tool_call_id or name where they apply."""

Tool = Mapping[str, Any]
"""An OpenAI tool definition (``{"type": "function", "function": {...}}``)."""

LARGEST = float(np.finfo(np.float32).max)
"""Of a reward or an advantage: as the trainer's float32 a larger one would be infinite, and nobody could say whose."""


class ErrorKind(StrEnum):
    """Why an episode failed. The first four are retried up to ``maxRetries`` and then dropped."""

    PROVIDER = "provider"
    """An engine failed or vanished."""
    TIMEOUT = "timeout"
    """The episode or one call outlasted its deadline."""
    SANDBOX = "sandbox"
    """The worker process that ran the environment died."""
    INVALID_RESPONSE = "invalidResponse"
    """An engine's answer lacks token ids or logprobs."""
    ENV = "env"
    """The environment's own code raised, or returned a value that cannot be used (NaN reward)."""
    PROTOCOL = "protocol"
    """A message or call out of turn."""
    OVERLONG = "overlong"
    """The first prompt leaves no room for a completion."""
    CANCELLED = "cancelled"
    """Ended by the scheduler: stale, drained, or a new attempt."""


RETRIED = frozenset({ErrorKind.PROVIDER, ErrorKind.TIMEOUT, ErrorKind.SANDBOX, ErrorKind.INVALID_RESPONSE})


class EpisodeError(Exception):
    """An episode's failure, by kind. Anything else that escapes is a bug of ours and ends the role."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Generation:
    """One completion of one request, as the engine returned it."""

    token_ids: list[int]
    """Sampled ids, the stop token included when it was sampled."""
    logprobs: list[float]
    """Natural log under the sampling distribution, one per id."""
    finish_reason: Literal["stop", "length", "abort"]
    version_low: int
    """Version that the engine held when the request was dispatched."""
    version_high: int
    """Version that the engine held when the answer came."""
    engine: str
    boot_id: str
    seconds: float = 0.0


class TokenGenerator(Protocol):
    """Token ids in, token ids and logprobs out; implemented by the engine pool."""

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = SERVED_MODEL_NAME,
    ) -> Generation:
        """Sample one completion on the engine that the episode sticks to (least-loaded at its first call).

        Waits while no engine may serve. Cancelling the call aborts the request on the engine.

        Raises:
            EpisodeError: PROVIDER when the engine is lost, INVALID_RESPONSE when ids or logprobs are missing.
        """
        ...

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of tokens 1.. given their prefix, on any engine that may serve."""
        ...

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to. Unknown episodes are ignored."""
        ...


@dataclass(frozen=True)
class Span:
    """Characters ``start:end`` of message ``message`` (index into ``Step.messages``) that are a harness warning."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class Step:
    """What a TextEnv returns from reset and step. Crosses a process boundary as plain JSON-like data."""

    messages: list[dict[str, Any]]
    """New messages since the last model turn (reset: the whole first prompt)."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tool definitions; those of reset stay for the episode."""
    reward: float | None = None
    """None: not scored (an episode that ends unscored is an ``env`` error)."""
    terminated: bool = False
    truncated: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    """Extra fields; those named by ``stateColumns`` go into the episode record."""
    warnings: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Action:
    """What the model did in one turn, as parsed by the codec."""

    text: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """``{"id", "name", "arguments": {...}}``; arguments already decoded."""
    truncated: bool = False
    """The completion hit its token limit."""


@runtime_checkable
class TextEnv(Protocol):
    """One episode that we drive. Methods may be sync or async; they run in a worker process."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Any:
        """First Step."""
        ...

    def step(self, action: Action) -> Any:
        """Next Step."""
        ...

    def close(self) -> Any:
        """Free what the episode holds. Called once, also after errors."""
        ...


@dataclass(frozen=True)
class Limits:
    """Bounds of one episode."""

    max_turns: int | None
    timeout_s: float
    max_model_len: int


@dataclass(frozen=True)
class RunnerResult:
    """What an EpisodeRunner returns: rewards; the tokens come from the gateway."""

    reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False


@runtime_checkable
class EpisodeRunner(Protocol):
    """An agent that owns its loop and calls an OpenAI-compatible URL. Runs in a worker process."""

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """Play one episode against ``base_url`` (session key in the path and in ``X-Session-ID``)."""
        ...


@runtime_checkable
class TaskSource(Protocol):
    """Tasks by index, so that a cursor is one integer. A task's ``key`` (int or str) is its identity, kept as it is."""

    def __len__(self) -> int:
        """How many tasks there are."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Task ``index``; the same at every call."""
        ...


@dataclass(frozen=True)
class Environment:
    """What an environment factory returns: tasks, and one of ``text_env``, ``runner``, ``multi_agent``, ``given``."""

    tasks: TaskSource
    text_env: Any = None
    """Callable without arguments that makes the TextEnv of one episode."""
    runner: EpisodeRunner | None = None
    multi_agent: MultiAgent | None = None
    given: bool = False
    """Tasks are whole conversations, ``messages`` and if need be ``tools``: nothing is played. For mode sft."""
    score_group: Any = None
    """Callable ``(task, list of episode infos) -> list of rewards``; the group then falls or stands as a whole."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    MAX_TURNS = "maxTurns"
    PROMPT_TOO_LONG = "promptTooLong"
    SCHEDULE_EXHAUSTED = "scheduleExhausted"
    """Every slot of a multi-agent episode was played."""
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass
class EpisodeOutcome:
    """One finished episode: samples for training and what records and metrics need."""

    episode: str
    environment: str
    task_key: int | str
    samples: list[Sample]
    """Kept branches; weights and advantages are filled in later, by the scheduler's side."""
    reward: float | None
    stop: StopReason
    error_kind: ErrorKind | None = None
    error: str | None = None
    num_turns: int = 0
    sampled_tokens: int = 0
    """Tokens that engines returned for the episode."""
    environment_tokens: int = 0
    """Tokens that the environment wrote after the first model token, warnings included; shared ones count once."""
    kept_tokens: int = 0
    """Of these, tokens that stand as actions in kept branches."""
    kept_branches: int = 0
    """How many samples there were, also when they are let go."""
    dropped_branches: int = 0
    unattributed: bool = False
    """The codec could not attribute this episode's tokens, so it gets no ECHO."""
    version_low: int = 0
    """Lowest version bound of the action tokens."""
    version_high: int = 0
    truncated: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The episode as text, for records."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Per turn: start_s and end_s (since the episode's start), tool_s, tokens, aborted; for the swimlane plot."""
    seconds: float = 0.0
    member: str = ""
    """Of a multi-agent episode, if this is the part of one member; ``episode`` then ends with it."""
    units: list["EpisodeOutcome"] = field(default_factory=list)
    """Of a whole multi-agent episode: one for each member that learns; samples are theirs."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Of all members of a multi-agent episode."""
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """What members of a multi-agent episode said aloud: slot, member, text."""
    parse_errors: int = 0
    """Turns whose reasoning markup is broken; their tokens do not train."""

    @property
    def whole(self) -> str:
        """Name of the episode that this is, or is one member's part of."""
        return self.episode.removesuffix(f"/{self.member}") if self.member else self.episode
