"""Episodes that nobody plays: tasks that are whole conversations become outcomes with samples."""

from typing import Any

from echorl_core.config import BatchConfig
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.gateway.messages import MessageError, wire_message
from echorl_orchestrator.outcomes import EpisodeRequest
from echorl_orchestrator.samples import Owner
from echorl_orchestrator.supervised import Talk, supervised
from echorl_orchestrator.types import EpisodeOutcome, ErrorKind, StopReason


def given_outcome(codec: ChatCodec, request: EpisodeRequest, config: BatchConfig, *, max_tokens: int) -> EpisodeOutcome:
    """The conversation of a task as an episode's outcome; one that cannot be learned from has failed."""
    task = request.task
    try:
        return _learned(codec, request, config, max_tokens)
    except (KeyError, TypeError, MessageError) as error:
        wrong = f"{type(error).__name__}: {error}" if not isinstance(error, MessageError) else str(error)
        reason = f"task {task.get('key')!r} is no conversation: {wrong}"
        return _failed(request, ErrorKind.ENV, reason)


def _learned(codec: ChatCodec, request: EpisodeRequest, config: BatchConfig, max_tokens: int) -> EpisodeOutcome:
    task = request.task
    talk = Talk(task["messages"], task.get("tools") or [])
    owner = Owner(request.episode, request.group, request.environment.name, request.task_key, request.attempt)
    found = supervised(codec, [talk], owner, config.sft, max_tokens=max_tokens, reward=task.get("reward"))
    if not found.built.samples:
        roles = ", ".join(config.sft.train_roles)
        reason = f"task {request.task_key!r} has no token to learn (sft.trainRoles: {roles}) in its first {max_tokens}"
        return _failed(request, ErrorKind.OVERLONG if found.truncated else ErrorKind.ENV, reason)
    return EpisodeOutcome(
        **_about(request),
        samples=found.built.samples,
        reward=task.get("reward"),
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
