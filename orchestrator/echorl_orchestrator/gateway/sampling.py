"""Which sampling training permits, whatever API asks for it.

Training needs the engine's logprobs to be those of the plain tempered distribution, so everything that changes the
distribution otherwise is refused.
"""

from collections.abc import Mapping
from typing import Any

from echorl_core.config import SamplingConfig


class SamplingRefusedError(ValueError):
    """A field of the request that cannot be honoured; ``field`` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def permitted(
    temperature: float, top_p: float, top_k: int | None, max_completion_tokens: int, *, evaluation: bool
) -> SamplingConfig:
    """The sampling of a request.

    Raises:
        SamplingRefusedError: training refuses it (eval sessions may set temperature 0, top_p and top_k), or a value is
            out of range.
    """
    if temperature < 0 or (temperature == 0 and not evaluation):
        raise SamplingRefusedError("temperature", f"found {temperature:g}, accepted in training is a number above 0")
    if not 0 < top_p <= 1 or (top_p != 1 and not evaluation):
        raise SamplingRefusedError("top_p", f"found {top_p:g}, accepted in training is 1")
    if top_k is not None and not evaluation:
        raise SamplingRefusedError("top_k", f"found {top_k}, accepted in training: leave it out")
    return SamplingConfig(
        temperature=temperature, top_p=top_p, top_k=top_k, max_completion_tokens=max_completion_tokens
    )


_LARGEST = 1e300
"""Integers beyond it are no floats; NaN is not below it."""


def pinned(default: SamplingConfig, body: Mapping[str, Any], limit: str) -> tuple[SamplingConfig, dict[str, float]]:
    """The environment's sampling for agents that nobody can keep from asking for another, and what they asked for.

    They may only ask for fewer tokens, by the field ``limit``.

    Raises:
        SamplingRefusedError: a value is no number, or the limit no count.
    """
    asked = {field: body[field] for field in ("temperature", "top_p", "top_k", limit) if body.get(field) is not None}
    for field, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            raise SamplingRefusedError(field, f"found {value!r}, accepted is a finite number")
    most = asked.get(limit, default.max_completion_tokens)
    if not isinstance(most, int) or most < 1:
        raise SamplingRefusedError(limit, f"found {most!r}, accepted is an integer from 1")
    sampling = default.model_copy(update={"max_completion_tokens": min(most, default.max_completion_tokens)})
    return sampling, asked
