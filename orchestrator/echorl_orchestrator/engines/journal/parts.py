"""What a journal says of turns: parts of them as they were received, and turns made of parts again. Pure.

A part says how many tokens its turn had before it. One that begins earlier replaces what came from there on, so a part
without tokens takes some back, or all; one that begins later follows something that is missing, and its turn is gone.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from echorl_orchestrator.engines.generation import Segment

_TOKEN_BYTES = 4
"""Of an id (int32), and of a logprob (float32, as batches have them)."""


class TurnKey(NamedTuple):
    """Whose turn it is, in any process of an attempt: names of episodes and groups differ from one to the next."""

    environment: str
    ordinal: int
    """Of the group's task: see ``tasks.task_deck``."""
    place: int
    """Of the episode in its group."""
    member: str = ""
    """Of a multi-agent episode."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some tokens of a turn, from one stream of one engine."""

    turn: int
    """Unique in the attempt; ascending in the order in which turns were asked for."""
    key: TurnKey
    request: bytes
    """Digest of all that the turn was sampled by."""
    at: int
    """Tokens of the turn before these."""
    engine: str = ""
    boot_id: str = ""
    version_low: int = 0
    version_high: int = 0
    token_ids: bytes = b""
    logprobs: bytes = b""
    finish_reason: Literal["stop", "length"] | None = None

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return len(self.token_ids) // _TOKEN_BYTES


class _Stretch(NamedTuple):
    engine: str
    boot_id: str
    version_low: int
    version_high: int
    token_ids: bytes
    logprobs: bytes


@dataclass
class KeptTurn:
    """One turn, put together from its parts. Numbers stay packed until somebody asks for them."""

    number: int
    request: bytes
    tokens: int = 0
    finish_reason: Literal["stop", "length"] | None = None
    _stretches: list[_Stretch] = field(default_factory=list)

    @property
    def version_low(self) -> int:
        """Of its oldest token."""
        return min(stretch.version_low for stretch in self._stretches)

    def segments(self) -> list[Segment]:
        """What each engine gave, in order, as ``OpenTurn`` keeps it."""
        return [
            Segment(
                one.engine,
                one.boot_id,
                one.version_low,
                one.version_high,
                _unpacked("i", one.token_ids),
                _unpacked("f", one.logprobs),
            )
            for one in self._stretches
        ]

    def take(self, part: Part) -> None:
        """Go on with a part that begins where the turn ends, or earlier."""
        self._cut(part.at)
        source = (part.engine, part.boot_id, part.version_low)
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last[:3] == source:
            # One stream has one pair of versions, the newest of its parts knows the higher one.
            ids, logprobs = last.token_ids + part.token_ids, last.logprobs + part.logprobs
            self._stretches[-1] = _Stretch(*source, max(last.version_high, part.version_high), ids, logprobs)
        elif part.size:
            self._stretches.append(_Stretch(*source, part.version_high, part.token_ids, part.logprobs))
        self.tokens += part.size
        self.finish_reason = part.finish_reason

    def _cut(self, size: int) -> None:
        while self.tokens > size:
            last = self._stretches.pop()
            held = len(last.token_ids) // _TOKEN_BYTES
            left = max(0, held - (self.tokens - size))
            self.tokens -= held - left
            if left:
                ids, logprobs = last.token_ids[: left * _TOKEN_BYTES], last.logprobs[: left * _TOKEN_BYTES]
                self._stretches.append(last._replace(token_ids=ids, logprobs=logprobs))


def kept_turns(parts: Iterable[Part]) -> dict[TurnKey, list[KeptTurn]]:
    """Turns that have a token, in the order in which they were asked for, by whose they are.

    Args:
        parts: in the order in which they were written.
    """
    turns: dict[int, tuple[TurnKey, KeptTurn]] = {}
    gone: set[int] = set()
    for part in parts:
        _, turn = turns.setdefault(part.turn, (part.key, KeptTurn(part.turn, part.request)))
        if part.at > turn.tokens or len(part.token_ids) != len(part.logprobs):
            gone.add(part.turn)
        if part.turn not in gone:
            turn.take(part)
    kept: dict[TurnKey, list[KeptTurn]] = {}
    for number in sorted(turns.keys() - gone):
        key, turn = turns[number]
        if turn.tokens:
            kept.setdefault(key, []).append(turn)
    return kept


def packed(token_ids: list[int], logprobs: list[float]) -> tuple[bytes, bytes]:
    """Ids and logprobs as parts hold them, little-endian."""
    # For so few numbers a third of the time that an array takes.
    return struct.pack(f"<{len(token_ids)}i", *token_ids), struct.pack(f"<{len(logprobs)}f", *logprobs)


def _unpacked(kind: str, data: bytes) -> list[Any]:
    return list(struct.unpack(f"<{len(data) // _TOKEN_BYTES}{kind}", data))
