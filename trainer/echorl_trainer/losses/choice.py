"""Chooses the policy-gradient loss that the config names."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from echorl_core.config import LossConfig
from echorl_core.losses import LOSSES
from echorl_trainer.losses.clipped import cispo_loss, grpo_loss
from echorl_trainer.losses.component import LossOutput
from echorl_trainer.losses.custom import load_loss
from echorl_trainer.losses.distillation import opd_loss
from echorl_trainer.losses.reinforce import reinforce_loss
from echorl_trainer.losses.tokens import PolicyLoss, PolicyTokens, RlSequences
from echorl_trainer.losses.trust_region import dppo_loss, ipo_loss

_BUILT_IN: Mapping[str, Callable[..., LossOutput]] = {
    "dppo": dppo_loss,
    "ipo": ipo_loss,
    "grpo": grpo_loss,
    "cispo": cispo_loss,
    "reinforce": reinforce_loss,
}


@dataclass(frozen=True)
class _BuiltIn:
    function: Callable[..., LossOutput]
    settings: Mapping[str, float]
    name: str = ""
    by_token: bool = True

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        columns = (tokens.policy_logprobs, tokens.sampler_logprobs, tokens.advantages, tokens.weights)
        return self.function(*columns, **self.settings, denominator=denominator)


@dataclass(frozen=True)
class _Distillation:
    mask_low: float
    kl_tau: float
    name: str = ""
    by_token: bool = True

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        teacher = tokens.teacher_logprobs
        if teacher is None:
            if tokens.sequences.lengths:
                raise ValueError(f"samples {tokens.sequences.sample_ids}: mode opd needs the teacher's logprobs")
            teacher = torch.zeros_like(tokens.sampler_logprobs)
        columns = (tokens.policy_logprobs, tokens.sampler_logprobs, teacher, tokens.weights)
        return opd_loss(*columns, mask_low=self.mask_low, kl_tau=self.kl_tau, denominator=denominator)


class _ByEnvironment:
    """Each sequence by the loss of its environment; all together are one component with one denominator."""

    def __init__(self, shared: PolicyLoss, own: Mapping[str, PolicyLoss]) -> None:
        self._shared, self._own = shared, own
        self.name = shared.name
        self.by_token = all(loss.by_token for loss in (shared, *own.values()))

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        """The micro-batch's share of the step's loss; every loss runs, so that all ranks run the same backward."""
        others = set(tokens.sequences.environments) - set(self._own)
        parts = [(self._shared, others), *((loss, {name}) for name, loss in self._own.items())]
        outputs = [loss(_of(tokens, names), denominator=denominator) for loss, names in parts]
        metrics: dict[str, Tensor] = {}
        for output in outputs:
            for name, values in output.metrics.items():
                metrics[name] = metrics[name] + values if name in metrics else values
        return LossOutput(sum((output.loss for output in outputs[1:]), start=outputs[0].loss), metrics)


def _of(tokens: PolicyTokens, environments: Set[str]) -> PolicyTokens:
    """Make a copy of tokens that has the weights of these environments' sequences alone."""
    sequences = tokens.sequences
    split = torch.split(sequences.rows, sequences.lengths) if sequences.lengths else ()
    chosen = [index for index, name in enumerate(sequences.environments) if name in environments]
    rows = torch.cat([split[index] for index in chosen]) if chosen else sequences.rows[:0]
    weights = torch.zeros_like(tokens.weights).index_copy(0, rows, tokens.weights[rows])
    picked = RlSequences(
        rows,
        [sequences.lengths[index] for index in chosen],
        [sequences.environments[index] for index in chosen],
        [sequences.sample_ids[index] for index in chosen],
    )
    return replace(tokens, weights=weights, sequences=picked)


def policy_loss(
    config: LossConfig, python_path: Sequence[str] = (), own: Mapping[str, LossConfig] | None = None
) -> PolicyLoss:
    """The loss that the config names.

    Args:
        config: of all environments that have none of their own.
        python_path: folders with user code.
        own: of environments by name.

    Raises:
        HookError: the function of a custom loss cannot be loaded.
        ValueError: a custom loss without a function.
    """
    if own:
        each = {name: policy_loss(one, python_path) for name, one in sorted(own.items())}
        return _ByEnvironment(policy_loss(config, python_path), each)
    if config.type == "custom":
        if config.hook is None:
            raise ValueError("loss.hook: a custom loss needs its function")
        return load_loss(config.hook, python_path)
    if config.type == "opd":
        return _Distillation(config.mask_low, config.kl_tau)
    settings = {name: getattr(config, name) for name in LOSSES[config.type].settings}
    return _BuiltIn(_BUILT_IN[config.type], settings)
