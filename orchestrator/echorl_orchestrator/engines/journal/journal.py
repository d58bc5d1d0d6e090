"""Turns of train episodes on the run's volume, so that the attempt's next process need not have them sampled again.

    pool --parts--> TurnJournal --every quarter of a second--> attempts/N/turns/
                       ^
    the next process: an episode's request that is in it is answered from it, or goes on behind what is there

An answer stands for one request alone: the same task, place in the group and member, ids of the prompt, sampling,
limits and model, and it is used once, oldest first. It is a sample of the policy versions that it names, however often
the process dies.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.engines.journal.frames import framed
from echorl_orchestrator.engines.journal.journalled_turn import JournalledTurn
from echorl_orchestrator.engines.journal.parts import KeptTurn, Part, TurnKey, kept_turns
from echorl_orchestrator.engines.journal.segments import Segments, Settled
from echorl_orchestrator.metrics.process_counters import JOURNAL_DROPPED, JOURNAL_ENDED, JOURNAL_KEPT

log = structlog.get_logger()

_ENCODER = msgspec.msgpack.Encoder()

FLUSH_S = 0.25
"""Between two writes: what a process that is killed loses, at the most."""
LARGEST_BYTES = 256 * 2**20
"""Of all files: some 25 million tokens."""
LARGEST_BACKLOG = 32 * 2**20
"""Bytes that may wait for a volume that takes its time."""
REPLAYS = 2
"""Processes that may be told a turn that they did not sample: what ends each that is told it must not end all."""


@dataclass(eq=False)
class Playing:
    """One train episode while it is played."""

    key: TurnKey
    kept: dict[str, list[KeptTurn]] = field(default_factory=dict)
    """What it may still be answered, by member."""
    numbers: dict[str, list[int]] = field(default_factory=dict)
    """Turns of its running try, by member."""
    tried: set[str] = field(default_factory=set)
    """Members whose try is over: the next turn begins another one."""
    told: dict[str, int] = field(default_factory=dict)
    """Lowest version of what its running try was answered from the journal, by member."""

    @property
    def version_low(self) -> int | None:
        """Lowest version of what the journal has told it or may still tell it."""
        lows = [turn.version_low for turns in self.kept.values() for turn in turns]
        return min([*lows, *self.told.values()], default=None)


class TurnJournal:
    """The journal of one process; made by ``opened``."""

    def __init__(self, segments: Segments, kept: dict[TurnKey, list[KeptTurn]]) -> None:
        self._segments, self._kept = segments, kept
        self._playing: dict[str, Playing] = {}
        self._count = self._backlog = 0
        self._waiting: dict[Path, list[bytes]] = {}
        self._on, self._in_the_way = True, False
        self._writing = asyncio.Lock()
        self.on_dropped: Callable[[int], None] = lambda tokens: None
        """Gets how many tokens are not told after all."""

    @classmethod
    def opened(cls, run: RunDirectory, identity: RunIdentity, settled: Settled) -> "TurnJournal":
        """With what earlier processes of the attempt have left. Blocking.

        Args:
            run: whose volume it is on.
            identity: of the attempt.
            settled: which tasks are not played again.
        """
        segments = Segments(run, identity)
        kept = kept_turns(segments.read())
        segments.remove(segments.settled(settled))
        oldest = segments.process - REPLAYS
        usable = {
            key: fresh
            for key, turns in kept.items()
            if not settled(key.environment, key.ordinal)
            and (fresh := [turn for turn in turns if turn.number >> 32 >= oldest])
        }
        journal = cls(segments, usable)
        if usable:
            segments.begin()
            log.info("turns of an earlier process may be told again", episodes=len(usable), tokens=journal.tokens)
        return journal

    @property
    def tokens(self) -> int:
        """What episodes that do not play yet may be told."""
        return sum(turn.tokens for turns in self._kept.values() for turn in turns)

    def begins(self, episode: str, key: TurnKey, usable_from: int) -> Playing:
        """A train episode is played from now on under this name.

        Args:
            episode: its name, without a member's.
            key: what it is known by in every process.
            usable_from: the lowest version that a batch may still be trained on; with anything older it begins anew.
        """
        playing = self._playing[episode] = Playing(key)
        for other in [other for other in self._kept if other[:3] == key[:3]]:
            playing.kept[other.member] = self._kept.pop(other)
        for member, turns in playing.kept.items():
            playing.numbers[member] = [turn.number for turn in turns]
        lowest = playing.version_low
        if lowest is not None and lowest < usable_from:
            for member in list(playing.kept):
                self._drop(playing, member, "stale")
        return playing

    def ends(self, episode: str) -> None:
        """It has ended, and what it was not told is not needed."""
        playing = self._playing.pop(episode)
        for member in list(playing.kept):
            self._drop(playing, member, "unasked")

    def tried(self, episode: str) -> None:
        """A try of an episode, or of a member of one, is over: another one is not told what this one was."""
        whole, _, member = episode.partition("/")
        if (playing := self._playing.get(whole)) is not None:
            playing.tried.add(member)

    def turn(self, episode: str, prompt_ids: Sequence[int], settings: bytes) -> JournalledTurn | None:
        """A turn that an episode asks for, with what is kept of it; None for one that is no train episode's.

        Args:
            episode: its name, with the member's.
            prompt_ids: of the turn.
            settings: everything else that it is sampled by.
        """
        whole, _, member = episode.partition("/")
        playing = self._playing.get(whole)
        if playing is None:
            return None
        key = playing.key._replace(member=member)
        if member in playing.tried:
            self._begin_anew(playing, key)
        digest = hashlib.sha256(settings)
        digest.update(msgspec.msgpack.encode(list(prompt_ids)))
        request = digest.digest()[:16]
        turns = playing.kept.get(member, [])
        # The oldest of equal ones: an agent that asks twice gets its first answer first, whichever was cut short.
        kept = next((turn for turn in turns if turn.request == request), None)
        if kept is None:
            self._drop(playing, member, "prompt")
            self._count += 1
            number = self._segments.process << 32 | self._count
            playing.numbers.setdefault(member, []).append(number)
            return JournalledTurn(number, key, request, self._append)
        turns.remove(kept)
        playing.told[member] = min(kept.version_low, playing.told.get(member, kept.version_low))
        JOURNAL_KEPT.inc(kept.tokens)
        return JournalledTurn(kept.number, key, request, self._append, kept)

    def _begin_anew(self, playing: Playing, key: TurnKey) -> None:
        """Nothing of the try before is told, neither here nor by a later process."""
        playing.tried.discard(key.member)
        playing.told.pop(key.member, None)
        self._drop(playing, key.member, "unasked")
        for number in playing.numbers.pop(key.member, []):
            self._append(Part(number, key, b"", 0))

    def _drop(self, playing: Playing, member: str, cause: str) -> None:
        """What is kept for an episode or a member is not told, neither here nor by a later process."""
        dropped = playing.kept.pop(member, [])
        for turn in dropped:
            self._append(Part(turn.number, playing.key._replace(member=member), b"", 0))
        self._count_dropped(dropped, cause)

    def _count_dropped(self, turns: list[KeptTurn], cause: str) -> None:
        if tokens := sum(turn.tokens for turn in turns):
            JOURNAL_DROPPED.labels(cause).inc(tokens)
            self.on_dropped(tokens)

    def _append(self, part: Part) -> None:
        if not self._on:
            return
        record, file = framed(_ENCODER.encode(part)), self._segments.file
        self._segments.note(file, part, len(record))
        self._waiting.setdefault(file, []).append(record)
        self._backlog += len(record)
        if self._segments.bytes > LARGEST_BYTES:
            self._turn_off("size", f"its files would be larger than {LARGEST_BYTES} bytes")
        elif self._backlog > LARGEST_BACKLOG:
            self._turn_off("volume", f"more than {LARGEST_BACKLOG} bytes wait to be written")

    async def sealed(self, settled: Settled) -> None:
        """A batch is sealed: remove what only tasks needed that are not played again."""
        for key in [key for key in self._kept if settled(key.environment, key.ordinal)]:
            self._count_dropped(self._kept.pop(key), "unasked")
        self._segments.rotate()
        async with self._writing:
            done = self._segments.settled(settled)
            for file in done:
                self._waiting.pop(file, None)
            await asyncio.to_thread(self._segments.remove, done)

    async def run(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.close()

    async def close(self) -> None:
        """Write what is there: another process may go on from it."""
        async with self._writing:
            waiting, self._waiting, self._backlog = self._waiting, {}, 0
            for file, records in waiting.items():
                try:
                    await asyncio.to_thread(self._segments.write, file, b"".join(records))
                except OSError as error:
                    self._turn_off("volume", str(error))
            if self._in_the_way:
                self._in_the_way = False
                await asyncio.to_thread(self._segments.clear)

    async def discard(self) -> None:
        """The attempt is over: nobody needs anything of it."""
        self._on, self._waiting = False, {}
        await asyncio.to_thread(self._segments.clear)

    def _turn_off(self, cause: str, why: str) -> None:
        """The room is wanted by what the run cannot go on without."""
        if self._on:
            JOURNAL_ENDED.labels(cause).inc()
            log.error("the turn journal is off until the orchestrator is started again", cause=cause, why=why)
        self._on, self._in_the_way, self._waiting, self._backlog = False, True, {}, 0
