"""The head's arithmetic in plain torch: probabilities of a chunk, float32, by logsumexp."""

from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_trainer.head.chunk import Gradients, Rows, Scored, add_product, product


@dataclass(frozen=True)
class Softmax:
    """Keeps probabilities; ``scale`` is 1 / temperature."""

    chunk_logits: int = 1 << 27
    """Logits that stand at once (float32: 512 MiB, and about as much again for what is made of them)."""

    def chunk_rows(self, rows: int, vocabulary: int) -> int:
        """As many as ``chunk_logits`` allows."""
        return max(1, self.chunk_logits // vocabulary)

    def score(self, rows: Rows, head: Tensor, *, keep: bool) -> Scored:
        """Statistics of ``rows``."""
        logits = product(rows.hidden, head.t()).div_(rows.temperature[:, None])
        normaliser = torch.logsumexp(logits, dim=-1)
        chosen = logits.gather(1, rows.targets[:, None]).squeeze(1)
        probabilities = (logits - normaliser[:, None]).exp_()
        entropy = normaliser - logits.mul_(probabilities).sum(dim=-1)
        return Scored(chosen - normaliser, entropy, probabilities if keep else None, rows.temperature)

    def add(self, rows: Rows, head: Tensor, scored: Scored, slope: Tensor, into: Gradients) -> None:
        """Add d logprob / d logit = (1[target] - probability) / temperature, times ``slope``."""
        assert scored.kept is not None  # noqa: S101 - kept for this
        slope = (slope / rows.temperature)[:, None]
        grad_logits = scored.kept.mul_(-slope)
        grad_logits.scatter_add_(1, rows.targets[:, None], slope)
        grad_logits = grad_logits.to(rows.hidden.dtype)
        into.hidden[:] = grad_logits @ head
        if into.head is not None:
            add_product(into.head, grad_logits.t(), rows.hidden)
