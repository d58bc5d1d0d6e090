"""The config of an inference engine."""

from typing import Literal

from echorl_core.config.base import RoleConfig
from echorl_core.config.model import ModelConfig


class InferenceConfig(RoleConfig):
    """Everything that one engine's command line needs."""

    model: ModelConfig
    served_name: str
    host: str = "127.0.0.1"
    port: int
    tensor_parallel: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    extra_args: list[str] = []
