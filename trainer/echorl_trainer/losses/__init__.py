"""Component losses: pure functions of per-token tensors. ``docs/algorithms.md`` has the formulas and their sources.

Each is a sum over tokens divided by a global denominator that the caller passes, so that micro-batches and ranks
simply add. A weight of 0 takes a token out of the component altogether: whatever its logprobs hold, infinities
included, reaches neither the value nor the gradient.
"""

from echorl_trainer.losses.choice import policy_loss
from echorl_trainer.losses.clipped import cispo_loss, grpo_loss
from echorl_trainer.losses.component import LossOutput, graph_anchor
from echorl_trainer.losses.cross_entropy import cross_entropy_loss
from echorl_trainer.losses.custom import HookError, LossInputs, LossOutputs
from echorl_trainer.losses.distillation import opd_loss
from echorl_trainer.losses.reinforce import reinforce_loss
from echorl_trainer.losses.tokens import PolicyLoss, PolicyTokens, RlSequences
from echorl_trainer.losses.trust_region import dppo_loss, ipo_loss

__all__ = [
    "HookError",
    "LossInputs",
    "LossOutput",
    "LossOutputs",
    "PolicyLoss",
    "PolicyTokens",
    "RlSequences",
    "cispo_loss",
    "cross_entropy_loss",
    "dppo_loss",
    "graph_anchor",
    "grpo_loss",
    "ipo_loss",
    "opd_loss",
    "policy_loss",
    "reinforce_loss",
]
