"""From the config to the policy-gradient loss that it names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from echorl_core.config import LossConfig
from echorl_trainer.losses.clipped import cispo_loss, grpo_loss
from echorl_trainer.losses.component import LossOutput
from echorl_trainer.losses.custom import load_loss
from echorl_trainer.losses.distillation import opd_loss
from echorl_trainer.losses.reinforce import reinforce_loss
from echorl_trainer.losses.tokens import PolicyLoss, PolicyTokens
from echorl_trainer.losses.trust_region import dppo_loss, ipo_loss

_BUILT_IN: Mapping[str, tuple[Callable[..., LossOutput], tuple[str, ...]]] = {
    "dppo": (dppo_loss, ("mask_low", "mask_high", "kl_tau")),
    "ipo": (ipo_loss, ("mask_low", "mask_high", "kl_tau")),
    "grpo": (grpo_loss, ("clip_low", "clip_high", "kl_tau")),
    "cispo": (cispo_loss, ("clip_low", "clip_high", "kl_tau")),
    "reinforce": (reinforce_loss, ("kl_tau",)),
}


@dataclass(frozen=True)
class _BuiltIn:
    function: Callable[..., LossOutput]
    settings: Mapping[str, float]
    name: str = ""

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        columns = (tokens.policy_logprobs, tokens.sampler_logprobs, tokens.advantages, tokens.weights)
        return self.function(*columns, **self.settings, denominator=denominator)


@dataclass(frozen=True)
class _Distillation:
    mask_low: float
    kl_tau: float
    name: str = ""

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        teacher = tokens.teacher_logprobs
        if teacher is None:
            if tokens.sequences.lengths:
                raise ValueError(f"samples {tokens.sequences.sample_ids}: mode opd needs the teacher's logprobs")
            teacher = torch.zeros_like(tokens.sampler_logprobs)
        columns = (tokens.policy_logprobs, tokens.sampler_logprobs, teacher, tokens.weights)
        return opd_loss(*columns, mask_low=self.mask_low, kl_tau=self.kl_tau, denominator=denominator)


def policy_loss(config: LossConfig, python_path: Sequence[str] = ()) -> PolicyLoss:
    """The loss that the config names; ``python_path``: folders with user code.

    Raises:
        HookError: the function of a custom loss cannot be loaded.
        ValueError: a custom loss without a function.
    """
    if config.type == "custom":
        if config.hook is None:
            raise ValueError("loss.hook: a custom loss needs its function")
        return load_loss(config.hook, python_path)
    if config.type == "opd":
        return _Distillation(config.mask_low, config.kl_tau)
    function, names = _BUILT_IN[config.type]
    return _BuiltIn(function, {name: getattr(config, name) for name in names})
