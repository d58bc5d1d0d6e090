"""What of an engine's answers can be used: ids and logprobs that belong together, and that can be true.

A turn's answer comes as events of a stream, prompt logprobs by token id in a completion; both as in vLLM 0.32.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.failures import EpisodeError, ErrorKind

T = TypeVar("T")

LOGPROB_FLOOR = -9999.0
"""vLLM writes this where a logprob is missing or not finite; no such token can be trained on."""


LOGPROB_CEILING = 1e-3
"""Nats. The logarithm of a probability is at most 0; what lies above by less is rounding: the difference of a logit and
the log-sum-exp, each in float32, errs by 2**-24 of their size, which is 6e-4 for logits of ten thousand."""

_DONE = b"[DONE]"


# Answers are trees of thousands of numbers: the garbage collector would look for cycles where there can be none.
class _Entry(msgspec.Struct, gc=False):
    """A sampled token's logprob; ``token_id`` is None where the answer does not say whose it is."""

    logprob: float | None = None
    token_id: int | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Entry] | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    routed_experts: str | None = None


class _Frame(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_FRAMES = msgspec.json.Decoder(_Frame)


class _PromptLogprob(msgspec.Struct, gc=False):
    logprob: float | None = None


class _PromptChoice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None


class _CompletionAnswer(msgspec.Struct):
    choices: list[_PromptChoice]


class ImpossibleLogprobError(EpisodeError):
    """A logprob that no probability has, or one that is no number: what the engine computes is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.INVALID_RESPONSE, message)


class BrokenStreamError(EpisodeError):
    """A request ended before its answer was whole; ``cause`` says by what, in a word for metrics."""

    def __init__(self, message: str, cause: str = "lost") -> None:
        super().__init__(ErrorKind.PROVIDER, message)
        self.cause = cause


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The usable part of one event of a stream: ids and logprobs (one per id), and in the last one why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"] | None
    aborted: bool = False
    """The engine gives the request up; there is no other reason then."""
    experts: str | None = None
    """Which experts tokens went to, as the engine writes it (``routed_experts.decode``); it comes with the end."""


def parse_frame(raw: bytes) -> Frame | None:
    """Read one event of a stream; None for one without tokens or an end.

    Raises:
        EpisodeError: INVALID_RESPONSE when it cannot be read, or ids and logprobs are of different length.
        BrokenStreamError: the engine says that it failed.
        ImpossibleLogprobError: a logprob is not finite, or above 0.
    """
    if raw == _DONE:
        return None
    try:
        frame = _FRAMES.decode(raw)
    except msgspec.DecodeError as error:
        raise invalid(f"event cannot be read: {error}") from error
    if frame.error is not None:
        raise BrokenStreamError(f"the engine ended the stream: {message_of(raw)}", "aborted")
    choice = only(frame.choices)
    entries = choice.logprobs.content if choice.logprobs is not None else None
    ids, logprobs = _paired(choice.token_ids or [], entries or [])
    if choice.finish_reason in {None, "abort"}:
        return Frame(ids, logprobs, None, choice.finish_reason == "abort", choice.routed_experts)
    return Frame(ids, logprobs, _ended(choice.finish_reason), experts=choice.routed_experts)


def _ended(finish_reason: str | None) -> Literal["stop", "length"]:
    if finish_reason == "stop":
        return "stop"
    if finish_reason == "length":
        return "length"
    raise invalid(f"finish_reason: found {finish_reason!r}, accepted are 'stop' and 'length'")


def _paired(token_ids: list[int], entries: list[_Entry]) -> tuple[list[int], list[float]]:
    """The ids and their logprobs, once it is sure that they belong together."""
    if not token_ids and not entries:
        return [], []
    if len(entries) != len(token_ids):
        lengths = f"{len(token_ids)} token ids and {len(entries)} logprobs"
        raise invalid(f"found {lengths}, accepted is the same number")
    if [entry.token_id for entry in entries] != token_ids:
        for position, (token, entry) in enumerate(zip(token_ids, entries, strict=True)):
            if entry.token_id is not None and entry.token_id != token:
                raise invalid(f"position {position}: logprob of token {entry.token_id} stands at token {token}")
    return token_ids, _all_possible([entry.logprob for entry in entries])


def parse_prompt_logprobs(raw: bytes, token_ids: Sequence[int]) -> list[float]:
    """Logprobs of tokens 1.. of the prompt, from a completion answer.

    Raises:
        EpisodeError: INVALID_RESPONSE when one is missing.
        ImpossibleLogprobError: one is not finite, or above 0.
    """
    positions = only(decode(raw, _CompletionAnswer).choices).prompt_logprobs
    if positions is None or len(positions) != len(token_ids):
        raise invalid(f"prompt_logprobs: found {len(positions or [])} positions, accepted are {len(token_ids)}")
    logprobs = []
    for index in range(1, len(token_ids)):
        entry = (positions[index] or {}).get(str(token_ids[index]))
        if entry is None:
            raise invalid(f"prompt_logprobs: found none of token {token_ids[index]} at position {index}")
        logprobs.append(_possible(entry.logprob, index))
    return logprobs


def decode(raw: bytes, kind: type[T]) -> T:
    """An answer's body as ``kind``; EpisodeError INVALID_RESPONSE if it does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise invalid(f"answer cannot be read: {error}") from error


def only(choices: list[T]) -> T:
    """The one choice of an answer; EpisodeError INVALID_RESPONSE if there are none or several."""
    if len(choices) != 1:
        raise invalid(f"choices: found {len(choices)}, accepted is 1")
    return choices[0]


def _all_possible(logprobs: list[float | None]) -> list[float]:
    """The same, once it is sure that each can be a token's that was sampled."""
    given = [logprob for logprob in logprobs if logprob is not None]
    # Sums of what is not finite are not finite, and one look at each end says the rest.
    if len(given) == len(logprobs) and math.isfinite(sum(given)) and min(given) > LOGPROB_FLOOR and max(given) <= 0.0:
        return given
    return [_possible(logprob, position) for position, logprob in enumerate(logprobs)]


def _possible(logprob: float | None, position: int) -> float:
    """The logprob, without what rounding has put above 0. None is what JSON has for NaN."""
    entry = f"engine's answer: position {position}: logprob {logprob}"
    if logprob is None or not math.isfinite(logprob) or logprob > LOGPROB_CEILING:
        raise ImpossibleLogprobError(f"{entry}, accepted are finite numbers up to 0")
    if logprob <= LOGPROB_FLOOR:
        raise EpisodeError(ErrorKind.INVALID_RESPONSE, f"{entry}, accepted are finite numbers above {LOGPROB_FLOOR}")
    return min(logprob, 0.0)


def invalid(message: str) -> EpisodeError:
    """The error of an answer that cannot be used."""
    return EpisodeError(ErrorKind.INVALID_RESPONSE, f"engine's answer: {message}")
