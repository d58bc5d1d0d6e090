"""Episodes that nobody plays: tasks that are whole conversations become outcomes with samples."""

from typing import Any

import structlog

from echorl_core.config import BatchConfig
from echorl_orchestrator.chat.conversations import KEYS, conversation_of
from echorl_orchestrator.chat.messages import MessageError, wire_message
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.attempt_outcome import EpisodeRequest
from echorl_orchestrator.episodes.episode_attempt import EpisodeResources
from echorl_orchestrator.episodes.samples import Owner
from echorl_orchestrator.episodes.sft import Talk, sft_samples
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind
from echorl_orchestrator.workers.pool import WorkerPool

_log = structlog.get_logger()


class RecordedPlayer:
    """Plays nothing: it reads conversations out of tasks, for train environments of mode sft."""

    def __init__(self, resources: EpisodeResources, batch: BatchConfig) -> None:
        self._resources, self._batch = resources, batch

    async def play(
        self, request: EpisodeRequest, pool: WorkerPool, *, evaluation: bool
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        """The conversation as an outcome, without a worker; see ``AttemptPlayer``."""
        codec = self._resources.codec
        assert not isinstance(codec, EngineRendering)  # noqa: S101 - refused when the player was made
        outcome = recorded_outcome(codec, request, self._batch, max_tokens=self._resources.max_model_len)
        if outcome.error is not None:
            _log.warning("conversation_left_out", environment=request.environment.name, error=outcome.error)
        return outcome, None


def recorded_outcome(
    codec: ChatCodec, request: EpisodeRequest, config: BatchConfig, *, max_tokens: int
) -> EpisodeOutcome:
    """The conversation of a task as an episode's outcome; one that cannot be learned from has failed."""
    task = request.task
    try:
        return _learned(codec, request, config, max_tokens)
    except BadInputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"{type(error).__name__}: {error}" if not isinstance(error, MessageError) else str(error)
        reason = f"task {task.get('key')!r} is no conversation: {wrong}"
        return _failed(request, ErrorKind.ENV, reason)


def _learned(codec: ChatCodec, request: EpisodeRequest, config: BatchConfig, max_tokens: int) -> EpisodeOutcome:
    task = request.task
    told = conversation_of({name: task[name] for name in KEYS if name in task})
    talk, reward = Talk(told["messages"], told["tools"]), told["reward"]
    owner = Owner(request.episode, request.group, request.environment.name, request.task_key, request.attempt)
    found = sft_samples(codec, [talk], owner, config.sft, max_tokens=max_tokens, reward=reward)
    if not found.built.samples:
        roles = ", ".join(config.sft.train_roles)
        reason = f"task {request.task_key!r} has no token to learn (sft.trainRoles: {roles}) in its first {max_tokens}"
        return _failed(request, ErrorKind.OVERLONG if found.truncated else ErrorKind.ENV, reason)
    return EpisodeOutcome(
        **_about(request),
        samples=found.built.samples,
        reward=reward,
        stop=StopReason.TRUNCATED if found.truncated else StopReason.TERMINATED,
        num_turns=sum(message["role"] == "assistant" for message in talk.messages),
        kept_tokens=found.built.kept_tokens,
        kept_branches=1,
        truncated=found.truncated,
        messages=[wire_message(message) for message in talk.messages],
    )


def _failed(request: EpisodeRequest, kind: ErrorKind, reason: str) -> EpisodeOutcome:
    return EpisodeOutcome(
        **_about(request), samples=[], reward=None, stop=StopReason.ERROR, error_kind=kind, error=reason
    )


def _about(request: EpisodeRequest) -> dict[str, Any]:
    return {
        "episode": request.episode,
        "environment": request.environment.name,
        "task_key": request.task_key,
    }
