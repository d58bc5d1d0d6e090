"""What a mode of play is given, and what it has to do: play one try of one episode."""

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
    """What tries are played with, in every mode of play."""

    sessions: Sessions
    generator: TokenGenerator
    codec: ChatCodec | EngineRendering
    builder: SampleBuilder
    max_model_len: int
    gateway_url: str
    """That runners call, without a path."""


class AttemptPlayer(Protocol):
    """A mode of play; ``casting`` says which one an environment's episodes have."""

    async def play(
        self, request: EpisodeRequest, pool: WorkerPool, *, evaluation: bool
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        """Play one try, with a worker of ``pool``; its outcome, and the error that ended it. Raises no EpisodeError."""
        ...
