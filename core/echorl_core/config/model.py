"""The model under training, and how its tokens are drawn."""

from typing import Literal

from echorl_core.config.base import RoleConfig


class LoraConfig(RoleConfig):
    """A low-rank adapter that trains in place of the model's weights."""

    rank: int
    alpha: float
    """The adapter's output is multiplied by ``alpha / rank``."""
    target_modules: list[str]
    """Linear layers that have one: whole names, or ends of names from a dot on."""


class ModelConfig(RoleConfig):
    """The model under training."""

    path: str
    """Folder with config.json, safetensors files and the tokenizer."""
    dtype: Literal["float32", "bfloat16"]
    """Precision of the engines' weights and of the trainer's compute; master weights are float32."""
    max_model_len: int
    renderer: str
    """Name of a message codec, or "engine" when vLLM renders."""
    lora: LoraConfig | None = None
    """None: all weights train."""


class SamplingConfig(RoleConfig):
    """How tokens are drawn. For training only the temperature may differ from plain sampling."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_completion_tokens: int = 2048
    presence_penalty: float = 0.0
    """As the other penalties for evals alone: 0 or, for repetition, 1 changes nothing."""
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
