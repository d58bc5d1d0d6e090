"""A turn while it is sampled, by as many engines as it takes: what was received, and what is still to be asked for.

    prompt ++ segment of engine A ++ segment of engine B ++ ...        stop token, or max_tokens in all

Pure: no connection, no clock. A frame is taken whole or not at all, so a turn that was cut anywhere goes on behind the
last whole frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from echorl_core.config import SamplingConfig
from echorl_core.routing import Choices
from echorl_orchestrator.engines.answers import Frame, invalid
from echorl_orchestrator.engines.generation import Generation, Segment

FinishReason = Literal["stop", "length"]


def is_movable(sampling: SamplingConfig) -> bool:
    """Whether another engine that gets the sampled tokens as prompt samples as the first would have.

    Presence and frequency penalties count sampled tokens alone; the repetition penalty counts those of the prompt too.
    Temperature, top_p and top_k have no memory, and nothing else that has is ever asked for: no seed, no least number
    of tokens, no grammar, no stop strings.
    """
    return sampling.presence_penalty == 0 and sampling.frequency_penalty == 0


@dataclass
class OpenStream:
    """What the stream of one engine has brought so far."""

    engine: str
    boot_id: str
    version_low: int
    version_high: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    experts: list[Choices] = field(default_factory=list)
    """Of the tokens from ``OpenTurn.routed`` on, prompt and sampled ids together."""
    certain: int = 0
    """How many of them were sampled with weights that are known to be right: by ``version_high`` at the latest."""
    finish_reason: FinishReason | None = None

    def vouch(self, version: int) -> None:
        """Everything received was sampled with right weights, by ``version`` at the latest."""
        self.certain, self.version_high = len(self.token_ids), version


@dataclass
class OpenTurn:
    """A turn for which at most ``max_tokens`` tokens may be sampled; one of ``stop_ids`` ends it."""

    prompt_ids: Sequence[int]
    max_tokens: int
    stop_ids: Sequence[int]
    segments: list[Segment] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    experts_from: int = 0
    """The first token whose experts are wanted."""
    experts: list[Choices] = field(default_factory=list)
    """Of the tokens from there on, as far as they are known."""
    left: int = field(init=False)
    """How many tokens may still be sampled, without those of an open stream."""

    def __post_init__(self) -> None:
        self.left = self.max_tokens

    @property
    def routed(self) -> int:
        """The first token whose experts are still to be told."""
        return self.experts_from + sum(len(part) for part in self.experts)

    def ids(self) -> list[int]:
        """Prompt and sampled ids: what the next engine goes on from."""
        return [*self.prompt_ids, *(token for segment in self.segments for token in segment.token_ids)]

    def resume(self, segments: list[Segment], finish_reason: FinishReason | None) -> None:
        """Begin with what was sampled before, by whomever; it is over for ``finish_reason``, or as its tokens say."""
        self.segments, self.left = segments, self.max_tokens - sum(len(segment.token_ids) for segment in segments)
        self.finish_reason = finish_reason or self._over(segments[-1].token_ids if segments else ())

    def take(self, stream: OpenStream, frame: Frame) -> None:
        """Add a frame to what ``stream`` has brought.

        Raises:
            EpisodeError: INVALID_RESPONSE when the engine goes on behind an end, or beyond the tokens asked for.
        """
        if stream.finish_reason is not None:
            raise invalid("found a frame behind the last one")
        if stream.token_ids:
            stream.token_ids += frame.token_ids
            stream.logprobs += frame.logprobs
        else:
            stream.token_ids, stream.logprobs = frame.token_ids, frame.logprobs
        if len(stream.token_ids) > self.left:
            raise invalid(f"found {len(stream.token_ids)} tokens, accepted are {self.left}")
        stream.finish_reason = frame.finish_reason

    def complete(self, stream: OpenStream) -> None:
        """A stream came to its end, and all of it is certain.

        Raises:
            EpisodeError: INVALID_RESPONSE when the turn has no token, or experts of more or fewer than there are.
        """
        rows, tokens = sum(len(part) for part in stream.experts), self._tokens + len(stream.token_ids)
        # The last token has not been through the model.
        if stream.experts and rows != tokens - 1 - self.routed:
            raise invalid(f"routed_experts: found {rows} tokens, accepted are {tokens - 1 - self.routed}")
        self._keep(stream)
        if not self.segments:
            raise invalid("found 0 token ids, accepted is at least 1")
        self.finish_reason = stream.finish_reason

    def break_off(self, stream: OpenStream, *, trusted: bool) -> tuple[int, int]:
        """A stream broke off: keep what of it is certain; nothing if the engine is not ``trusted`` any more.

        The turn is over if that happens to be all of it.

        Returns:
            How many of the stream's tokens are kept, and how many are not.
        """
        received = len(stream.token_ids)
        size = stream.certain if trusted else 0
        del stream.token_ids[size:], stream.logprobs[size:]
        self._keep(stream)
        if size == received and stream.finish_reason is not None and self.segments:
            self.finish_reason = stream.finish_reason
        else:
            self.finish_reason = self._over(stream.token_ids)
        return size, received - size

    def begin_anew(self) -> int:
        """Forget everything sampled; returns how many tokens that were."""
        lost = self.max_tokens - self.left
        self.segments, self.finish_reason, self.left, self.experts = [], None, self.max_tokens, []
        return lost

    def generation(self, seconds: float) -> Generation:
        """The turn, once it has a finish reason."""
        if self.finish_reason is None:
            raise RuntimeError("the turn is not over")
        *_, last = self.segments
        whole = Generation(
            token_ids=last.token_ids,
            logprobs=last.logprobs,
            finish_reason=self.finish_reason,
            version_low=last.version_low,
            version_high=last.version_high,
            engine=last.engine,
            boot_id=last.boot_id,
            seconds=seconds,
            experts=np.concatenate(self.experts) if self.experts else None,
            experts_from=self.experts_from,
        )
        return whole if len(self.segments) == 1 else self._joined(whole)

    def _joined(self, last: Generation) -> Generation:
        """All segments as one generation."""
        return replace(
            last,
            token_ids=[one for part in self.segments for one in part.token_ids],
            logprobs=[one for part in self.segments for one in part.logprobs],
            version_low=min(segment.version_low for segment in self.segments),
            version_high=max(segment.version_high for segment in self.segments),
            segments=tuple(self.segments),
        )

    def _over(self, newest: Sequence[int]) -> FinishReason | None:
        """Why a turn whose newest tokens are these is over, whatever its engine was about to say."""
        if newest and newest[-1] in self.stop_ids:
            return "stop"
        return "length" if self.left == 0 else None

    @property
    def _tokens(self) -> int:
        """How many there are, those of the prompt included and those of an open stream not."""
        return len(self.prompt_ids) + self.max_tokens - self.left

    def _keep(self, stream: OpenStream) -> None:
        if stream.token_ids:
            self.left -= len(stream.token_ids)
            if stream.experts:
                self.experts.append(np.concatenate(stream.experts)[: max(0, self._tokens - self.routed)])
            self.segments.append(
                Segment(
                    stream.engine,
                    stream.boot_id,
                    stream.version_low,
                    stream.version_high,
                    stream.token_ids,
                    stream.logprobs,
                )
            )
