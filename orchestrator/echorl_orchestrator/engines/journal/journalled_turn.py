"""One turn on its way into the journal."""

from collections.abc import Callable
from typing import Literal

from echorl_orchestrator.engines.bodies import STREAM_INTERVAL
from echorl_orchestrator.engines.generation import Segment
from echorl_orchestrator.engines.journal.parts import KeptTurn, Part, TurnKey, packed
from echorl_orchestrator.engines.open_turn import OpenStream

FinishReason = Literal["stop", "length"]


class JournalledTurn:
    """Tells the journal what is certain of a turn, as it comes."""

    def __init__(
        self, number: int, key: TurnKey, request: bytes, append: Callable[[Part], None], kept: KeptTurn | None = None
    ) -> None:
        """``kept``: what an earlier process has received of it."""
        self._number, self._key, self._request, self._append = number, key, request, append
        self.segments: list[Segment] = [] if kept is None else kept.segments()
        """What the turn begins with."""
        self.finish_reason: FinishReason | None = None if kept is None else kept.finish_reason
        """Why it is over already; None: it goes on."""
        self.tokens = 0 if kept is None else kept.tokens
        """In ``segments``."""
        self._before, self._streamed = self.tokens, 0

    def streamed(self, stream: OpenStream) -> None:
        """The stream that runs has brought more that is certain. Its end is told by ``closed``, at once."""
        if stream.finish_reason is None and stream.certain - self._streamed >= STREAM_INTERVAL:
            self._write(stream, stream.certain, None)

    def closed(self, stream: OpenStream, finish_reason: FinishReason | None) -> None:
        """The stream is over, and what it holds now is what counts of it; a reason: so is the turn."""
        size = len(stream.token_ids)
        if size < self._streamed:
            self._take_back(self._before + size)
            self._streamed = size
        if size > self._streamed or finish_reason is not None:
            self._write(stream, size, finish_reason)
        self._before, self._streamed = self._before + size, 0

    def failed(self) -> None:
        """Nothing of the turn is used."""
        if self._before or self._streamed:
            self._take_back(0)
        self._before = self._streamed = 0

    def _write(self, stream: OpenStream, end: int, finish_reason: FinishReason | None) -> None:
        begin, self._streamed = self._streamed, end
        ids, logprobs = packed(stream.token_ids[begin:end], stream.logprobs[begin:end])
        self._append(
            Part(
                self._number,
                self._key,
                self._request,
                self._before + begin,
                stream.engine,
                stream.boot_id,
                stream.version_low,
                stream.version_high,
                ids,
                logprobs,
                finish_reason,
            )
        )

    def _take_back(self, size: int) -> None:
        self._append(Part(self._number, self._key, self._request, size))
