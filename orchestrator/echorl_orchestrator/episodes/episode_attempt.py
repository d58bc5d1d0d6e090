"""What an attempt at an episode is played with, and who plays it."""

from dataclasses import dataclass
from typing import Protocol

from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.engines.generation import TokenGenerator
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.episodes.attempt_outcome import EpisodeRequest, SampleBuilder
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_orchestrator.workers.pool import WorkerPool


@dataclass(frozen=True)
class EpisodeResources:
    """What attempts are played with, whoever plays them."""

    sessions: Sessions
    generator: TokenGenerator
    codec: ChatCodec | EngineRendering
    builder: SampleBuilder
    max_model_len: int
    gateway_url: str
    """The URL that runners call, without a path."""


class AttemptPlayer(Protocol):
    """Plays attempts in one way; ``episode_players`` says which one an environment's episodes have."""

    async def play(
        self, request: EpisodeRequest, pool: WorkerPool, *, evaluation: bool
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        """One attempt with a worker of ``pool``: its outcome, and the error that ended it. Raises no EpisodeError."""
        ...
