"""What an episode ended as: its samples for training, and what records and metrics tell of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from echorl_orchestrator.failures import ErrorKind

if TYPE_CHECKING:
    # Workers of environments know outcomes, and start sooner without arrays.
    from echorl_core.wire.batch import Sample

LARGEST = (2 - 2.0**-23) * 2.0**127
"""Of float32, exactly. No reward and no advantage is larger: the trainer would take it for infinite."""


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
    samples: "list[Sample]"
    """Kept branches; weights and advantages are filled in later, by the scheduler's side."""
    reward: float | None
    stop: StopReason
    error_kind: ErrorKind | None = None
    error: str | None = None
    phase: str | None = None
    """What was under way when the error came; of members, with the slot and its phase."""
    num_turns: int = 0
    sampled_tokens: int = 0
    """Tokens that engines returned for the episode."""
    environment_tokens: int = 0
    """Tokens that the environment wrote after the first model token, warnings included; shared ones count once."""
    kept_tokens: int = 0
    """Sampled tokens that stand as actions in kept branches."""
    kept_branches: int = 0
    """How many samples there were, also when they are let go."""
    dropped_branches: int = 0
    unused_branches: int = 0
    """Branches of side calls and of answers that nobody went on from: no samples."""
    unattributed: bool = False
    """The codec could not attribute this episode's tokens, so it gets no ECHO."""
    version_low: int = 0
    """Lowest version bound of the action tokens."""
    version_high: int = 0
    truncated: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The episode as text, for records; of an agent with several branches, that of its last used turn."""
    conversations: list[dict[str, Any]] = field(default_factory=list)
    """Where there are several branches: ``branch``, ``messages``, and ``unused``: why its last turn does not train."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Per turn: start_s and end_s (since the episode's start), tool_s, tokens, aborted; for the swimlane plot."""
    seconds: float = 0.0
    member: str = ""
    """Of a multi-agent episode, if this is the part of one member; ``episode`` then ends with it."""
    units: list["EpisodeOutcome"] = field(default_factory=list)
    """Of a whole multi-agent episode: one for each member that learns; samples are theirs."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Rewards of all members of a multi-agent episode."""
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """What members of a multi-agent episode said aloud: slot, member, text."""
    parse_errors: int = 0
    """Turns whose reasoning markup is broken; their tokens do not train."""

    @property
    def whole(self) -> str:
        """Name of the episode that this is, or is one member's part of."""
        return self.episode.removesuffix(f"/{self.member}") if self.member else self.episode


@dataclass(frozen=True)
class FailedEpisode:
    """An episode that failed: it is in no batch, baseline, denominator or score, but in the records."""

    outcome: EpisodeOutcome
    group: str
    kind: ErrorKind
    error: str
    """Why, in words."""
