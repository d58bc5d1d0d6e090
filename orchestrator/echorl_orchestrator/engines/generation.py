"""What an engine is asked for and what it answers: the seam between the pool and everybody who needs tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_core.config import SamplingConfig
from echorl_core.names import SERVED_MODEL_NAME
from echorl_core.routing import Choices
from echorl_orchestrator.chat.messages import Message, Tool

Versions = int | NDArray[np.int32]


class Segment(msgspec.Struct, frozen=True, gc=False):
    """What one stream of one engine gave to a turn and what may be trained on."""

    engine: str
    boot_id: str
    version_low: int
    """Version that the engine held when the request was dispatched."""
    version_high: int
    """Version that the engine held when the last of these tokens came."""
    token_ids: list[int]
    logprobs: list[float]
    """Natural log under the sampling distribution, one per id."""


@dataclass(frozen=True)
class Generation:
    """One completion of one request, whichever engines sampled it."""

    token_ids: list[int]
    """Sampled ids, the stop token included when it was sampled."""
    logprobs: list[float]
    """Natural log under the sampling distribution, one per id."""
    finish_reason: Literal["stop", "length", "abort"]
    version_low: int
    """Version that the engine held when the request was dispatched; the oldest, if there were several engines."""
    version_high: int
    """Version that the engine held when the answer came; the newest, if there were several engines."""
    engine: str
    """The last one, as is ``boot_id``."""
    boot_id: str
    seconds: float = 0.0
    segments: tuple[Segment, ...] = ()
    """What each engine gave, in order, if there were several."""
    experts: Choices | None = None
    """[n, layers, k]: which experts n tokens went to, from token ``experts_from`` of prompt and sampled ids together
    on; the last one has none. None: no engine told any."""
    experts_from: int = 0

    def versions(self) -> tuple[Versions, Versions]:
        """``version_low`` and ``version_high`` of all tokens (one number) or of each (T, int32)."""
        if not self.segments:
            return self.version_low, self.version_high
        sizes = [len(segment.token_ids) for segment in self.segments]
        low, high = ([getattr(one, name) for one in self.segments] for name in ("version_low", "version_high"))
        return np.repeat(np.array(low, np.int32), sizes), np.repeat(np.array(high, np.int32), sizes)


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
        experts_from: int | None = None,
    ) -> Generation:
        """Sample one completion on the engine that the episode sticks to (least-loaded at its first call).

        ``experts_from``: the first token whose experts are wanted, if engines return any; None: nobody wants them.

        Waits while no engine may serve. What an engine is lost in goes on at another one (``open_turn``). Cancelling
        the call aborts the request on the engine.

        Raises:
            EpisodeError: PROVIDER when no engine goes on, INVALID_RESPONSE when ids or logprobs are missing.
        """
        ...

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of tokens 1.. given their prefix, on any engine that may serve."""
        ...

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to. Unknown episodes are ignored."""
        ...


@dataclass(frozen=True)
class ChatGeneration:
    """One chat completion."""

    prompt_ids: list[int]
    generation: Generation
    message: dict[str, Any]
    """The assistant message that an engine's parsers make of it: content, tool_calls, reasoning_content."""


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
        """Sample a turn for messages that an engine renders. It goes on at another engine as ``generate`` does.

        Raises:
            PromptTooLongError: the engine says that the prompt does not fit.
            EpisodeError: PROVIDER when no engine goes on, INVALID_RESPONSE when ids or logprobs are missing.
        """
        ...

    async def count_tokens(self, *, episode: str, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """How many tokens the prompt of such a chat has, also one that is too long. Nothing is sampled.

        Raises:
            EpisodeError: PROVIDER when the engine is lost, INVALID_RESPONSE when it refuses or tells no number.
        """
        ...
