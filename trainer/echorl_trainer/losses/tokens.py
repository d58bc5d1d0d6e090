"""What a policy-gradient loss is computed from, and what a policy-gradient loss is."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from echorl_trainer.losses.component import LossOutput


@dataclass(frozen=True)
class RlSequences:
    """Where a micro-batch's tokens with an RL weight stand, sequence by sequence; known on the host."""

    rows: Tensor
    """int64 [R]: indices into the K scored tokens, in order."""
    lengths: list[int]
    """Such tokens of each sequence that has any; they sum to R."""
    environments: list[str]
    """Of these sequences."""
    sample_ids: list[str]
    """Of these sequences."""


@dataclass(frozen=True)
class PolicyTokens:
    """What a policy-gradient loss sees of a micro-batch's K scored tokens: columns are float32 [K]."""

    policy_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: RlSequences
    teacher_logprobs: Tensor | None = None
    """None where no teacher was asked."""


class PolicyLoss(Protocol):
    """The ``rl`` component, with its settings."""

    @property
    def name(self) -> str:
        """Name of the loss in messages about the whole step: the user's function; empty for what is built in."""
        ...

    @property
    def by_token(self) -> bool:
        """Whether a token's part depends on its own logprob alone: then gradients are formed as tokens are scored."""
        ...

    def __call__(self, tokens: PolicyTokens, *, denominator: float) -> LossOutput:
        """The micro-batch's share of the step's loss."""
        ...
