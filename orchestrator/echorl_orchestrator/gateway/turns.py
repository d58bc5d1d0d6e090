"""What a session is opened with, what a turn gives back, and how turns are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.engines.generation import TokenGenerator
from echorl_orchestrator.environments.contract import Action
from echorl_orchestrator.failures import EpisodeError


class SessionClosedError(Exception):
    """The episode is over; nothing reaches an engine any more."""


class TurnLimitError(Exception):
    """The session had as many turns as ``maxTurns`` allows."""


@dataclass(frozen=True)
class Turn:
    """One finished model turn. Seconds count from the opening of the session."""

    number: int
    message: dict[str, Any]
    """Canonical assistant message; a caller that sends it back as it is continues the branch."""
    action: Action
    finish_reason: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    completion_tokens: int
    branch: int
    malformed: bool
    start_s: float
    end_s: float
    flaw: str | None = None
    """What is wrong with its reasoning markup: its tokens do not train."""


@dataclass(frozen=True)
class SessionSpec:
    """What a session is opened with."""

    key: str
    episode: str
    codec: ChatCodec | EngineRendering
    generator: TokenGenerator
    sampling: SamplingConfig
    max_model_len: int
    max_turns: int | None = None
    evaluation: bool = False
    """Eval sessions may sample in ways that training refuses."""


@dataclass
class SessionFacts:
    """What the episode's end needs to know of what happened on the way."""

    turns: list[Turn] = field(default_factory=list)
    aborted: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of turns that were cancelled or failed."""
    asked: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Of a turn by its number: sampling that the client asked for where the environment's held."""
    sampled_tokens: int = 0
    prompt_too_long: bool = False
    turn_limit_hit: bool = False
    failure: EpisodeError | None = None
    """The last failure of an engine."""
