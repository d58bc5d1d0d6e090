"""What losses, advantages and filters are, with the defaults of each type written out."""

from typing import Any

from echorl_core import config
from echorl_core.losses import LOSSES, OPD_SETTINGS
from echorl_manifest.models.algorithm import Advantage, Algorithm, AlgorithmOverrides, Filter, LengthShaping, Loss, Sft
from echorl_manifest.models.base import Hook
from echorl_manifest.models.environments import TrainEnvironment
from echorl_manifest.models.run import EchoRLRunSpec


def hook_config(part: Hook | Loss | Advantage | Filter) -> config.HookConfig:
    """A user's own function, with its arguments."""
    if part.import_path is None:
        raise ValueError("a custom function without an import path; validate the manifest first")
    return config.HookConfig(import_path=part.import_path, kwargs=part.kwargs)


def loss_config(loss: Loss, mode: str = "rl") -> config.LossConfig:
    """The trainer's policy-gradient loss."""
    if mode != "opd" and loss.type == "custom":
        return config.LossConfig(type="custom", hook=hook_config(loss))
    defaults = OPD_SETTINGS if mode == "opd" else LOSSES[loss.type].settings
    given = {name: getattr(loss, name) for name in defaults}
    settings: dict[str, Any] = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    return config.LossConfig(type="opd" if mode == "opd" else loss.type, **settings)


def advantage_config(advantage: Advantage) -> config.AdvantageConfig:
    """How the orchestrator makes advantages."""
    shaping = advantage.length_shaping
    return config.AdvantageConfig(
        type=advantage.type,
        baseline_per=advantage.baseline_per or "task",
        momentum=0.9 if advantage.momentum is None else advantage.momentum,
        order=advantage.order or "updateThenSubtract",
        length_shaping=None if shaping is None else _length_shaping(shaping),
        hook=hook_config(advantage) if advantage.type == "custom" else None,
    )


def teacher_config(algorithm: Algorithm) -> config.TeacherConfig | None:
    """The teacher of modes sft and opd."""
    teacher = algorithm.teacher
    if teacher is None or teacher.url is None or teacher.model is None:
        return None
    return config.TeacherConfig(url=teacher.url, model=teacher.model)


def sft_config(sft: Sft | None) -> config.SftConfig:
    """Whose tokens are targets of mode sft."""
    sft = sft or Sft()
    names = None if sft.tool_names is None else list(sft.tool_names)
    return config.SftConfig(train_roles=list(sft.train_roles), tool_names=names)


def filter_configs(algorithm: Algorithm) -> list[config.FilterConfig]:
    """Rules that take episodes out of training; modes without advantages leave out the default, which asks for them."""
    rules = (rule for rule in algorithm.filters if algorithm.mode == "rl" or rule.type != "zeroAdvantage")
    return [_filter(rule, algorithm.mode) for rule in rules]


def _filter(rule: Filter, mode: str) -> config.FilterConfig:
    return config.FilterConfig(
        type=rule.type,
        enforce=rule.enforce,
        stage=rule.stage,
        # There is no RL term that an episode could be taken out of alone.
        scope="all" if mode == "sft" else rule.scope,
        hook=hook_config(rule) if rule.type == "custom" else None,
        **{name: value for name, value in _bounds(rule).items() if value is not None},
    )


def _bounds(rule: Filter) -> dict[str, Any]:
    return {"easy_from": rule.easy_from, "hard_to": rule.hard_to}


def overrides_config(environment: TrainEnvironment) -> config.OverridesConfig:
    """What the environment has of its own, for the orchestrator."""
    own = environment.algorithm or AlgorithmOverrides()
    return config.OverridesConfig(
        group_size=own.group_size,
        rl_weight=own.rl_weight,
        advantage=None if own.advantage is None else advantage_config(own.advantage),
        filters=None if own.filters is None else [_filter(rule, "rl") for rule in own.filters],
    )


def losses_by_environment(spec: EchoRLRunSpec) -> dict[str, config.LossConfig]:
    """Losses of environments that have their own, for the trainer."""
    return {
        one.name: loss_config(one.algorithm.loss)
        for one in spec.environments.train
        if one.algorithm is not None and one.algorithm.loss is not None
    }


def _length_shaping(shaping: LengthShaping) -> config.LengthShapingConfig:
    weights = {"completion_weight": shaping.completion_weight, "environment_weight": shaping.environment_weight}
    given: dict[str, Any] = {name: value for name, value in weights.items() if value is not None}
    return config.LengthShapingConfig(by=shaping.by, **given)
