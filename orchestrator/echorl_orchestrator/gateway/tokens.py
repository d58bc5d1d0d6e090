"""Tokens of a branch with everything that is known about them, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echorl_core.wire.batch import MessageRole
from echorl_orchestrator.codec.protocol import Rendered
from echorl_orchestrator.engines.generation import Versions

_ROLES = {
    "system": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
}
_UNUSABLE_LOGPROB = -9999.0


@dataclass(frozen=True)
class Columns:
    """T tokens; every array has length T."""

    ids: NDArray[np.int32]
    message_role: NDArray[np.uint8]
    body: NDArray[np.bool_]
    warning: NDArray[np.bool_]
    tool: NDArray[np.int16]
    """Index into the session's tool names; -1: none."""
    turn: NDArray[np.int32]
    """Turn that sampled the token; -1: not sampled."""
    usable: NDArray[np.bool_]
    """Sampled with a logprob that can be trained on."""
    logprobs: NDArray[np.float32]
    version_low: NDArray[np.int32]
    version_high: NDArray[np.int32]
    temperature: NDArray[np.float32]
    origin: NDArray[np.int64]
    """Same number in two branches: the same token. 0: template, never trained."""

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def head(self, count: int) -> "Columns":
        """The first ``count`` tokens."""
        return Columns(**{column.name: getattr(self, column.name)[:count] for column in fields(self)})

    def tail(self, start: int) -> "Columns":
        """The tokens from ``start`` on."""
        return Columns(**{column.name: getattr(self, column.name)[start:] for column in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """The parts one after the other."""
        return cls(**{c.name: np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(cls)})


def _places_in_message(rendered: Rendered) -> NDArray[np.int64]:
    """Number of each body token within its message."""
    places = np.zeros(len(rendered.ids), np.int64)
    body = np.flatnonzero(rendered.body & (rendered.message >= 0))
    order = np.argsort(rendered.message[body], kind="stable")
    owners = rendered.message[body][order]
    places[body[order]] = np.arange(len(body)) - np.searchsorted(owners, owners, side="left")
    return places


def prompt_columns(
    rendered: Rendered, messages: Sequence[Mapping[str, Any]], uids: Sequence[int], tool_index: Mapping[str, int]
) -> Columns:
    """Columns of rendered tokens. ``uids`` number the messages; ``rendered.message`` indexes both."""
    size = len(rendered.ids)
    # One more entry each, which index -1 (no message) picks.
    roles = np.array([*(_ROLES[message["role"]] for message in messages), MessageRole.NONE], np.uint8)
    names = [tool_index.get(message.get("name", ""), -1) if message["role"] == "tool" else -1 for message in messages]
    tools = np.array([*names, -1], np.int16)
    numbers = np.array([*uids, 0], np.int64)
    places = _places_in_message(rendered)
    return Columns(
        ids=np.asarray(rendered.ids, np.int32),
        message_role=roles[rendered.message],
        body=rendered.body,
        warning=rendered.warning,
        tool=np.where(rendered.body, tools[rendered.message], -1).astype(np.int16),
        turn=np.full(size, -1, np.int32),
        usable=np.zeros(size, np.bool_),
        logprobs=np.zeros(size, np.float32),
        version_low=np.full(size, -1, np.int32),
        version_high=np.full(size, -1, np.int32),
        temperature=np.ones(size, np.float32),
        origin=np.where(rendered.body, -((numbers[rendered.message] << 32) + places + 1), 0),
    )


def sampled_columns(
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    versions: tuple[Versions, Versions],
    turn: int,
    temperature: float,
    first_origin: int,
    trains: bool = True,
) -> Columns:
    """Columns of sampled tokens. A missing, non-finite or masked logprob makes the whole turn unusable.

    So does ``trains`` False: such a turn is context for what comes after it. ``versions`` are the lowest and highest,
    of all tokens or of each.
    """
    size = len(ids)
    values = np.asarray(logprobs if len(logprobs) == size else np.full(size, np.nan), np.float32)
    usable = trains and bool(np.all(np.isfinite(values) & (values > _UNUSABLE_LOGPROB)))
    return Columns(
        ids=np.asarray(ids, np.int32),
        message_role=np.full(size, MessageRole.ASSISTANT, np.uint8),
        body=np.ones(size, np.bool_),
        warning=np.zeros(size, np.bool_),
        tool=np.full(size, -1, np.int16),
        turn=np.full(size, turn, np.int32),
        usable=np.full(size, usable),
        logprobs=values if usable else np.zeros(size, np.float32),
        version_low=np.full(size, versions[0], np.int32),
        version_high=np.full(size, versions[1], np.int32),
        temperature=np.full(size, temperature, np.float32),
        origin=np.arange(first_origin, first_origin + size, dtype=np.int64),
    )
