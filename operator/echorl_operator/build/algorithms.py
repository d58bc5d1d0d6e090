"""What losses, advantages and filters are, with the defaults of each type written out."""

from collections.abc import Mapping
from typing import Any

from echorl_core import config
from echorl_operator.api.algorithm import Advantage, Filter, LengthShaping, Loss
from echorl_operator.api.base import Hook

LOSS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "dppo": {"mask_low": 0.2, "mask_high": 0.2, "kl_tau": 1.0e-3},
    "ipo": {"mask_low": 0.3, "mask_high": 0.3, "kl_tau": 1.0e-3},
    "grpo": {"clip_low": 0.2, "clip_high": 0.28, "kl_tau": 1.0e-3},
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, "kl_tau": 1.0e-3},
    "reinforce": {"kl_tau": 1.0e-3},
}
"""By type; ``docs/algorithms.md`` says where they are from."""


def hook_config(part: Hook | Loss | Advantage | Filter) -> config.HookConfig:
    """A user's own function, with its arguments."""
    if part.import_path is None:
        raise ValueError("a custom function without an import path; validate the manifest first")
    return config.HookConfig(import_path=part.import_path, kwargs=part.kwargs)


def loss_config(loss: Loss) -> config.LossConfig:
    """The trainer's policy-gradient loss."""
    if loss.type == "custom":
        return config.LossConfig(type="custom", hook=hook_config(loss))
    defaults = LOSS_DEFAULTS[loss.type]
    given = {name: getattr(loss, name) for name in defaults}
    settings: dict[str, Any] = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    return config.LossConfig(type=loss.type, **settings)


def advantage_config(advantage: Advantage) -> config.AdvantageConfig:
    """How the orchestrator makes advantages."""
    if advantage.type == "rae":
        raise ValueError("advantage rae is not supported yet; validate the manifest first")
    shaping = advantage.length_shaping
    return config.AdvantageConfig(
        type=advantage.type,
        length_shaping=None if shaping is None else _length_shaping(shaping),
        hook=hook_config(advantage) if advantage.type == "custom" else None,
    )


def filter_config(rule: Filter) -> config.FilterConfig:
    """A rule that takes episodes out of training."""
    return config.FilterConfig(
        type=rule.type,
        enforce=rule.enforce,
        stage=rule.stage,
        scope=rule.scope,
        hook=hook_config(rule) if rule.type == "custom" else None,
        **{name: value for name, value in _bounds(rule).items() if value is not None},
    )


def _bounds(rule: Filter) -> dict[str, Any]:
    return {"easy_from": rule.easy_from, "hard_to": rule.hard_to}


def _length_shaping(shaping: LengthShaping) -> config.LengthShapingConfig:
    weights = {"completion_weight": shaping.completion_weight, "environment_weight": shaping.environment_weight}
    given: dict[str, Any] = {name: value for name, value in weights.items() if value is not None}
    return config.LengthShapingConfig(by=shaping.by, **given)
