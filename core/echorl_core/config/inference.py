"""The config of an inference engine."""

from typing import Literal

from echorl_core.config.base import RoleConfig
from echorl_core.config.model import ModelConfig

Quantization = Literal["fp8"]
"""How engines hold linear layers; else in the model's dtype."""


class SpeculativeConfig(RoleConfig):
    """Tokens that an engine guesses, and checks several in one step."""

    method: Literal["ngram"]
    num_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int


class InferenceConfig(RoleConfig):
    """Everything that one engine's command line needs."""

    model: ModelConfig
    served_name: str
    host: str = "127.0.0.1"
    port: int
    tensor_parallel: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    speculative: SpeculativeConfig | None = None
    quantization: Quantization | None = None
    router_replay: bool = False
    """Whether it returns the experts of a mixture that tokens went to."""
    extra_args: list[str] = []
