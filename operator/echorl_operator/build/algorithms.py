"""What losses and advantages are, with the defaults of each type written out."""

from collections.abc import Mapping
from typing import Any

from echorl_core import config
from echorl_operator.api.algorithm import Loss

LOSS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "dppo": {"mask_low": 0.2, "mask_high": 0.2, "kl_tau": 1.0e-3},
    "ipo": {"mask_low": 0.3, "mask_high": 0.3, "kl_tau": 1.0e-3},
    "grpo": {"clip_low": 0.2, "clip_high": 0.28, "kl_tau": 1.0e-3},
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, "kl_tau": 1.0e-3},
    "reinforce": {"kl_tau": 1.0e-3},
}
"""By type; ``docs/algorithms.md`` says where they are from."""


def loss_config(loss: Loss) -> config.LossConfig:
    """The trainer's policy-gradient loss."""
    if loss.type == "custom":
        raise ValueError("custom losses are not supported yet; validate the manifest first")
    defaults = LOSS_DEFAULTS[loss.type]
    given = {name: getattr(loss, name) for name in defaults}
    settings: dict[str, Any] = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    return config.LossConfig(type=loss.type, **settings)
