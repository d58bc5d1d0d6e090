"""Which sampling training permits, whatever API asks for it.

Training needs the engine's logprobs to be those of the plain tempered distribution, so everything that changes the
distribution otherwise is refused.
"""

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
