"""The loss of one micro-batch as a function of its logprobs: all components that the step has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from echorl_trainer.batches import ScoredBatch
from echorl_trainer.losses import LossOutput, PolicyLoss, PolicyTokens, cross_entropy_loss, graph_anchor

COMPONENTS = ("rl", "ce")


@dataclass(frozen=True)
class MicroBatchLoss:
    """Called with float32 [K] logprobs, as often as the head likes; the last call is with all of them."""

    policy_loss: PolicyLoss
    denominators: Mapping[str, float]
    scored: ScoredBatch
    outputs: dict[str, LossOutput] = field(default_factory=dict)
    """Of the last call, by component; without those that the step skips."""

    @property
    def by_token(self) -> bool:
        """Whether a token's part depends on its own logprob alone."""
        return self.policy_loss.by_token or not self._has("rl")

    def __call__(self, logprobs: Tensor) -> Tensor:
        """Sum of the components, a scalar; without any, a zero that depends on every logprob."""
        scored, outputs = self.scored, self.outputs
        if self._has("rl"):
            columns = (logprobs, scored.sampler_logprobs, scored.advantages, scored.rl_weight)
            tokens = PolicyTokens(*columns, scored.sequences, scored.teacher_logprobs)
            outputs["rl"] = self.policy_loss(tokens, denominator=self.denominators["rl"])
        if self._has("ce"):
            outputs["ce"] = cross_entropy_loss(logprobs, scored.ce_weight, denominator=self.denominators["ce"])
        parts = [outputs[name].loss for name in COMPONENTS if name in outputs]
        return sum(parts[1:], start=parts[0]) if parts else graph_anchor(logprobs)

    def _has(self, component: str) -> bool:
        return self.denominators.get(component, 0) > 0
