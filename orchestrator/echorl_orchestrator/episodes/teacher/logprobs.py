"""A teacher's logprobs of tokens that the policy sampled, by prefill: one request a sequence, nothing is generated.

The route is vLLM's ``/v1/completions`` with token ids and ``prompt_logprobs``: OpenAI's own has no such field.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_core.wire.batch import Sample
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.endpoints.client import EndpointClient, EndpointError
from echorl_orchestrator.engines.answers import LOGPROB_CEILING, LOGPROB_FLOOR
from echorl_orchestrator.failures import BadInputError, ErrorKind

COMPLETIONS = "completions"
PROBE = "def add(a, b):\n    return a + b\n\nThe answer is 42, she said."
ACCEPTED = "accepted is a vLLM server of a model with the same tokenizer"


class _Entry(msgspec.Struct):
    logprob: float | None = None
    decoded_token: str | None = None


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def prefill_body(model: str, token_ids: Sequence[int]) -> bytes:
    """A completion request whose answer has the logprob of every prompt token, at temperature 1."""
    request = {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
        "add_special_tokens": False,
    }
    return msgspec.json.encode(request)


def _entries(raw: bytes, token_ids: Sequence[int], where: str) -> list[_Entry]:
    """One entry for each of tokens 1.. of the prompt."""
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except msgspec.DecodeError as error:
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: no completion: {error}") from None
    positions = answer.choices[0].prompt_logprobs if answer.choices else None
    if positions is None or len(positions) != len(token_ids):
        found = f"prompt_logprobs for {len(positions or [])} of {len(token_ids)} tokens"
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: the answer has {found}")
    entries = [(position or {}).get(str(token)) for position, token in zip(positions[1:], token_ids[1:], strict=True)]
    if None in entries:
        place = 1 + entries.index(None)
        reason = f"the answer has no logprob of token {token_ids[place]} at position {place}"
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: {reason}")
    return [entry for entry in entries if entry is not None]


def parse_prefill(raw: bytes, token_ids: Sequence[int], where: str) -> NDArray[np.float32]:
    """Natural-log probabilities of the prompt's tokens, float32 [T]; 0 for the first, which nothing precedes.

    Raises:
        TeacherError: INVALID_RESPONSE, one is missing, not finite or above 0.
    """
    found = np.array([0.0, *(_number(entry) for entry in _entries(raw, token_ids, where))], np.float32)
    usable = np.isfinite(found) & (found > LOGPROB_FLOOR) & (found <= LOGPROB_CEILING)
    if not usable.all():
        place = int(np.flatnonzero(~usable)[0])
        accepted = f"accepted are finite numbers above {LOGPROB_FLOOR} and up to 0"
        reason = f"logprob {found[place]} at position {place}, {accepted}"
        raise EndpointError(ErrorKind.INVALID_RESPONSE, f"{where}: {reason}")
    return np.minimum(found, np.float32(0.0))


def _number(entry: _Entry) -> float:
    return float("nan") if entry.logprob is None else entry.logprob


async def teacher_logprobs(teacher: EndpointClient, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """The teacher's logprobs of a sequence, float32 [T]; the first is 0.

    Raises:
        TeacherError: it refuses, cannot be reached, or leaves a logprob out.
    """
    raw = await teacher.post(COMPLETIONS, prefill_body(teacher.config.model, token_ids))
    return parse_prefill(raw, token_ids, f"teacher {teacher.config.url}")


async def judged(teacher: EndpointClient, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the teacher's logprobs where something of them trains.

    Raises:
        TeacherError: see ``teacher_logprobs``.
    """

    async def one(sample: Sample) -> Sample:
        if not sample.rl_weight.any():
            return sample
        logprobs = await teacher_logprobs(teacher, sample.token_ids.tolist())
        return msgspec.structs.replace(sample, ref_logprobs=logprobs)

    return list(await asyncio.gather(*(one(sample) for sample in samples)))


async def check_judges(teacher: EndpointClient, tokenizer: TextTokenizer) -> None:
    """One request at the run's start, for tokens of a known text; waits while the teacher loads.

    Raises:
        BadInputError: the teacher has no prompt logprobs or another tokenizer, refuses, or cannot be reached in time.
    """
    ids = tokenizer.encode(PROBE)
    where = f"teacher {teacher.config.url}"
    try:
        body = prefill_body(teacher.config.model, [*ids, tokenizer.largest_id])
        raw = await teacher.post(COMPLETIONS, body, busy_s=teacher.config.start_deadline_s)
        parse_prefill(raw, [*ids, tokenizer.largest_id], where)
        entries = _entries(raw, [*ids, tokenizer.largest_id], where)[: len(ids) - 1]
    except EndpointError as error:
        raise BadInputError(f"spec.algorithm.teacher: {error.message}; {ACCEPTED}") from None
    for token, entry in zip(ids[1:], entries, strict=True):
        own = tokenizer.decode([token])
        if entry.decoded_token is not None and entry.decoded_token.strip() != own.strip():
            differs = f"token {token} is {entry.decoded_token!r} to it and {own!r} to the policy"
            raise BadInputError(f"spec.algorithm.teacher: {where}: {differs}; {ACCEPTED}")
