"""Whatever byte a journal ends at, what is told of a turn is what was certain of it at some moment."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from echorl_orchestrator.engines.answers import Frame
from echorl_orchestrator.engines.journal.frames import framed, unframed
from echorl_orchestrator.engines.journal.journalled_turn import JournalledTurn
from echorl_orchestrator.engines.journal.parts import Part, TurnKey, kept_turns, packed
from echorl_orchestrator.engines.open_turn import OpenStream, OpenTurn

KEY = TurnKey("digits", 3, 0)


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_a_file_that_ends_anywhere_has_its_whole_records(records: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(framed, records))
    for end in range(len(whole) + 1):
        inside = sum(size <= end for size in accumulate(len(framed(record)) for record in records))
        assert list(unframed(whole[:end])) == records[:inside]
    if whole:
        place = data.draw(st.integers(0, len(whole) - 1))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << data.draw(st.integers(0, 7))
        before = sum(size <= place for size in accumulate(len(framed(record)) for record in records))
        assert list(unframed(bytes(flipped))) == records[:before]


@dataclass
class Play:
    """A turn that engines stream, and what was certain of it at each record's end."""

    turn: OpenTurn = field(default_factory=lambda: OpenTurn([1], 100_000, []))
    log: bytes = b""
    told: list[tuple[int, list[tuple[int, float, int]], str | None]] = field(default_factory=list)
    """Bytes so far, then id, logprob and lowest version of each token, and why the turn ended."""

    def __post_init__(self) -> None:
        self.journalled = JournalledTurn(1 << 32, KEY, b"request", self._append)
        self.stream: OpenStream | None = None

    def _append(self, part: Part) -> None:
        self.log += framed(msgspec.msgpack.encode(part))
        if part.size == 0 and part.finish_reason is None:
            self.told.append((len(self.log), self.now()[: part.at], None))
        else:
            self.told.append((len(self.log), self.now()[: part.at + part.size], part.finish_reason))

    def now(self) -> list[tuple[int, float, int]]:
        parts = [*self.turn.segments]
        if self.stream is not None and not any(one.token_ids is self.stream.token_ids for one in parts):
            parts.append(self.stream)  # type: ignore[arg-type]  # has the same fields
        return [
            (token, logprob, part.version_low)
            for part in parts
            for token, logprob in zip(part.token_ids, part.logprobs, strict=True)
        ]


EVENT = st.tuples(st.integers(0, 130), st.booleans())
"""Tokens, and whether the engine's weights are known to be right."""
STREAM = st.tuples(st.lists(EVENT, max_size=4), st.booleans())
"""Events until it breaks off, and whether the engine is believed then."""


def streamed(play: Play, number: int, events: list[tuple[int, bool]], finish: Literal["stop"] | None) -> OpenStream:
    play.stream = stream = OpenStream(f"e{number}", "boot", number, number)
    for place, (size, sure) in enumerate(events):
        begin = len(play.now())
        last = finish if place == len(events) - 1 else None
        play.turn.take(stream, Frame([*range(begin, begin + size)], [-0.25 * number] * size, last))
        if sure:
            stream.vouch(number)
            play.journalled.streamed(stream)
    return stream


def told(log: bytes) -> tuple[list[tuple[int, float, int]], str | None]:
    """Tokens of the turn in a file, and why it ended."""
    turns = kept_turns(msgspec.msgpack.decode(record, type=Part) for record in unframed(log))
    if not turns:
        return [], None
    ((kept,),) = turns.values()
    tokens = [
        (token, logprob, segment.version_low)
        for segment in kept.segments()
        for token, logprob in zip(segment.token_ids, segment.logprobs, strict=True)
    ]
    assert len(tokens) == kept.tokens
    return tokens, kept.finish_reason


@given(st.lists(STREAM, max_size=4), st.lists(EVENT, min_size=1, max_size=3))
def test_a_turn_is_told_as_it_stood_at_the_newest_whole_record(
    broken: list[tuple[list[tuple[int, bool]], bool]], last: list[tuple[int, bool]]
) -> None:
    play = Play()
    for number, (events, trusted) in enumerate(broken, start=1):
        stream = streamed(play, number, events, None)
        play.turn.break_off(stream, trusted=trusted)
        play.journalled.closed(stream, play.turn.finish_reason)
        assert play.turn.finish_reason is None
        assert told(play.log)[0] == play.now(), "what does not count any more is not told either"
    stream = streamed(play, 9, [*last, (1, True)], "stop")
    stream.vouch(9)
    play.turn.complete(stream)
    play.journalled.closed(stream, play.turn.finish_reason)
    for end, tokens, reason in [(0, [], None), *play.told]:
        found, why = told(play.log[:end])
        assert (found, why) == (tokens, reason)
    assert play.told[-1][1:] == (play.now(), "stop")


def part(turn: int, at: int, size: int, low: int = 0, high: int = 0) -> Part:
    ids, logprobs = packed([7] * size, [-1.0] * size)
    return Part(turn, KEY, b"r", at, "e", "b", low, high, ids, logprobs)


def test_a_turn_with_a_part_missing_is_not_told() -> None:
    assert not kept_turns([part(1, 0, 5), part(1, 6, 5)])
    assert not kept_turns([part(1, 5, 5), part(1, 0, 3)])


def test_later_parts_of_a_stream_know_its_higher_version() -> None:
    ((kept,),) = kept_turns([part(1, 0, 5, 2, 2), part(1, 5, 5, 2, 4)]).values()
    (segment,) = kept.segments()
    assert (segment.version_low, segment.version_high, len(segment.token_ids)) == (2, 4, 10)
    assert kept.version_low == 2


def test_what_failed_is_taken_back() -> None:
    parts: list[Part] = []
    journalled = JournalledTurn(1, KEY, b"r", parts.append)
    stream = OpenStream("e", "b", 1, 1, [1] * 64, [-1.0] * 64, certain=64)
    journalled.streamed(stream)
    assert kept_turns(parts)
    journalled.failed()
    assert not kept_turns(parts)
