"""Which sampling fields of a chat request are honoured, and which are refused.

Training needs the engine's logprobs to be those of the plain tempered distribution, so everything that changes the
distribution otherwise is refused. Fields that have no effect on tokens are let pass.
"""

import math
from collections.abc import Mapping
from typing import Any

from echorl_core.config import SamplingConfig

# Values that ask for nothing: field -> accepted values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "seed": (None,),
    "stop": (None, []),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "function_call": (None, "auto"),
    "functions": (None, []),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "chat_template_kwargs": (None, {}),
}
_READ = frozenset({"model", "messages", "tools", "stream", "stream_options", "temperature", "top_p", "top_k"}) | {
    "max_tokens",
    "max_completion_tokens",
}
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"}
) | {
    "prompt_cache_key",
    "verbosity",
}


class SamplingRefusedError(ValueError):
    """A field of the request that cannot be honoured; ``field`` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def _number(body: Mapping[str, Any], field: str, default: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SamplingRefusedError(field, f"found {value!r}, accepted is a finite number")
    return float(value)


def _count(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise SamplingRefusedError(field, f"found {value!r}, accepted is an integer from 1")
    return value


def _refuse_unknown(body: Mapping[str, Any]) -> None:
    for field, value in body.items():
        if field in _READ or field in _WITHOUT_EFFECT:
            continue
        if field not in _NEUTRAL:
            raise SamplingRefusedError(field, "unknown field")
        if value not in _NEUTRAL[field]:
            accepted = ", ".join(repr(neutral) for neutral in _NEUTRAL[field] if neutral is not None) or "none"
            raise SamplingRefusedError(
                field, f"not supported yet: found {value!r}; accepted: leave it out, or {accepted}"
            )


def requested_sampling(body: Mapping[str, Any], default: SamplingConfig, *, evaluation: bool) -> SamplingConfig:
    """The sampling that a request asks for; fields it leaves out are the environment's.

    Raises:
        SamplingRefusedError: a field that training refuses (eval sessions may set temperature 0, top_p and top_k), a
            field that nothing implements, or a value out of range.
    """
    _refuse_unknown(body)
    temperature = _number(body, "temperature", default.temperature)
    top_p = _number(body, "top_p", default.top_p)
    top_k = _count(body, "top_k") if body.get("top_k") not in (None, -1, 0) else default.top_k
    limit = _count(body, "max_completion_tokens") or _count(body, "max_tokens") or default.max_completion_tokens
    if temperature < 0 or (temperature == 0 and not evaluation):
        raise SamplingRefusedError("temperature", f"found {temperature:g}, accepted in training is a number above 0")
    if not 0 < top_p <= 1 or (top_p != 1 and not evaluation):
        raise SamplingRefusedError("top_p", f"found {top_p:g}, accepted in training is 1")
    if top_k is not None and not evaluation:
        raise SamplingRefusedError("top_k", f"found {top_k}, accepted in training: leave it out")
    return SamplingConfig(temperature=temperature, top_p=top_p, top_k=top_k, max_completion_tokens=limit)
