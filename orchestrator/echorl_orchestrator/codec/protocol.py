"""The seam between chat messages and token ids: what a codec must do, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_orchestrator.chat.messages import Message, Tool

WarningSpans = Mapping[int, Sequence[tuple[int, int]]]
"""Message index -> character spans ``start:end`` of its content that are harness warnings."""


@dataclass(frozen=True)
class Rendered:
    """N token ids and where each came from."""

    ids: list[int]
    message: NDArray[np.int32]
    """Index of the message that a token belongs to, in the list that was rendered; -1: none. Length N."""
    body: NDArray[np.bool_]
    """True for tokens of a message's content, False for the template around it. Length N."""
    warning: NDArray[np.bool_]
    """True for body tokens that overlap a warning span. Length N."""

    @classmethod
    def joined(cls, pieces: Sequence["Rendered"]) -> "Rendered":
        """The pieces one after the other."""
        return cls(
            [token for piece in pieces for token in piece.ids],
            np.concatenate([piece.message for piece in pieces]),
            np.concatenate([piece.body for piece in pieces]),
            np.concatenate([piece.warning for piece in pieces]),
        )

    @classmethod
    def uniform(cls, ids: list[int], message: int = -1, *, body: bool = False) -> "Rendered":
        """Tokens that share one origin."""
        size = len(ids)
        return cls(ids, np.full(size, message, np.int32), np.full(size, body), np.zeros(size, np.bool_))


@dataclass(frozen=True)
class Parsed:
    """A completion, read back."""

    text: str
    """Content without reasoning and tool calls."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """``{"name", "arguments": {...}}`` (and ``id`` where the model writes one), well-formed calls only."""
    reasoning: str | None = None
    malformed: bool = False
    """At least one attempted tool call could not be read."""

    def carried(self) -> "Parsed":
        """Without calls that cannot reach a tool, which count as malformed.

        JSON spells what neither a worker nor a line of records takes: half a surrogate pair, integers beyond 64 bits.
        """
        calls = [call for call in self.tool_calls if _crosses(call)]
        return self if len(calls) == len(self.tool_calls) else replace(self, tool_calls=calls, malformed=True)


def _crosses(call: Mapping[str, Any]) -> bool:
    try:
        msgspec.msgpack.encode(call)
    except (OverflowError, RecursionError, UnicodeEncodeError):
        return False
    return True


class ChatCodec(Protocol):
    """Messages to token ids and back, for one model family.

    Messages are canonical: content is a string, ``tool_calls`` have decoded arguments, tool messages carry ``name``.
    """

    stop_ids: tuple[int, ...]
    """Tokens that end a turn; sampled ones belong to the turn."""
    attributed: bool
    """Whether ``Rendered`` says where tokens came from. Without it there is no ECHO."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], warnings: WarningSpans) -> Rendered:
        """The whole prompt, generation prompt included."""
        ...

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        """A whole conversation, without a generation prompt. What a model would sample is the body of its messages."""
        ...

    def extend(
        self,
        prompt_tail: Sequence[int],
        sampled: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        warnings: WarningSpans,
    ) -> Rendered | None:
        """Only the tokens that follow ``prompt_tail + sampled`` when ``messages`` come next.

        ``prompt_tail`` is the prompt since the previous turn's end (all of it at the first turn), so that the cost
        depends on the new messages alone. A close token that truncation cut off is the first of the new tokens.
        None: this family's template would change earlier tokens, so the history must be rendered anew.
        """
        ...

    def parse(self, prompt_tail: Sequence[int], sampled: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Read a completion."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """What ids spell, markup included and the tokens that end a turn left out."""
        ...
