"""Rendering by the engine: for families without a codec. Prompts come back as ids, without attribution, so no ECHO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from echorl_core.config import SamplingConfig
from echorl_orchestrator.types import Generation, Message, Tool


class PromptTooLongError(Exception):
    """The prompt leaves no room for a completion under ``maxModelLen``."""


@dataclass(frozen=True)
class ChatGeneration:
    """One chat completion, as the engine returned it."""

    prompt_ids: list[int]
    generation: Generation
    message: dict[str, Any]
    """The engine's assistant message: content, tool_calls, reasoning_content."""


@runtime_checkable
class ChatGenerator(Protocol):
    """What a token generator must offer besides, so that engines can render."""

    async def chat(
        self,
        *,
        episode: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        sampling: SamplingConfig,
        max_tokens: int,
    ) -> ChatGeneration:
        """Chat completion with ``return_token_ids`` and logprobs, on the engine that the episode sticks to.

        Raises:
            PromptTooLongError: the engine says that the prompt does not fit.
            EpisodeError: PROVIDER when the engine is lost, INVALID_RESPONSE when ids or logprobs are missing.
        """
        ...


class EngineRendering:
    """Stands in for a codec: tells the gateway to send messages instead of ids."""

    attributed = False
