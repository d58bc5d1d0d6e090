"""Requests for tokens as vLLM 0.32 takes them: every sampling field set, so that nobody's default applies."""

from collections.abc import Sequence
from typing import Any

import msgspec

from echorl_core import names
from echorl_core.config import SamplingConfig

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

STREAM_INTERVAL, LEAST_INTERVAL = 64, 8
"""Most and fewest tokens to a frame of a stream, after the first, which has one."""


def stream_interval(pace: float | None) -> int:
    """How many tokens an engine shall send at a time: those of about half a second.

    What was not sent is lost with the engine, and each frame costs engine and orchestrator.

    Args:
        pace: tokens a second that it samples for one stream; None: unknown.
    """
    return STREAM_INTERVAL if pace is None else round(min(STREAM_INTERVAL, max(LEAST_INTERVAL, pace / 2)))


def generate_body(
    *,
    prompt_ids: Sequence[int],
    sampling: SamplingConfig,
    max_tokens: int,
    stop_ids: Sequence[int],
    interval: int = STREAM_INTERVAL,
    model: str = names.SERVED_MODEL_NAME,
    experts_from: int | None = None,
) -> bytes:
    """A generate request with every sampling field set, so that no default of the model or the server applies.

    There is no seed: a seed per request can end vLLM's CPU engine. ``logprobs: 1`` gives the sampled token's own.
    ``interval``: tokens to a frame.
    ``experts_from``: of an engine that returns experts, the first token whose are wanted; None: of others.
    """
    params: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": 0.0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "ignore_eos": False,
        "stop_token_ids": list(stop_ids),
        "logprobs": 1,
        "detokenize": False,
        "skip_special_tokens": False,
        "stream_interval": interval,
    }
    if experts_from is not None:
        params["routed_experts_prompt_start"] = experts_from
    request = {
        "model": model,
        "token_ids": list(prompt_ids),
        "sampling_params": params,
        "stream": True,
    }
    return msgspec.json.encode(request)


def prompt_logprobs_body(token_ids: Sequence[int]) -> bytes:
    """A completion request whose answer has the logprob of every prompt token (``prompt_logprobs: 0``: no others)."""
    request = {
        "model": names.SERVED_MODEL_NAME,
        "prompt": list(token_ids),
        "n": 1,
        "max_tokens": 1,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "prompt_logprobs": 0,
        "add_special_tokens": False,
        "stream": False,
    }
    return msgspec.json.encode(request)
