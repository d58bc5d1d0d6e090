"""The head's arithmetic in one pass, which a loss that is not known yet cannot hold up.

With z the logits of a row, t its target and T its temperature:

    e_j = exp((z_j - z_t) / T)                    how much likelier j is than the target: e_t = 1
    S = 1 + sum of e_j over j != t                logprob = -log S
    d logprob / d z = -w / (S T)                  w_j = e_j, and w_t = minus the sum of the others

So w can be written, in the compute dtype, while S is still being summed. What is unknown until then, S and the slope of
the loss, is one factor per row: it goes to the hidden states of one product and to the result of the other. Where the
target has nearly all probability no digits are lost, as no 1 - p is formed.

Beside a very unlikely target the ratios would be beyond bounds. Such a row is relative to its largest logit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_trainer.head.chunk import Gradients, Rows, Scored, add_product, product

Fold = Callable[[Rows, Tensor, Tensor | None, Tensor], None]
"""Writes, of rows and a head, w to the third, [R, V], if there is one, and logprobs, entropies and scales to the last,
float32 [3, R]."""

LIMIT = 1e15
"""The largest sum of ratios to the target. Factors per row stay as far from what underflows."""

_TILE = 128
"""Rows are taken by multiples of it, as products are quick with them."""


def fold_in_torch(rows: Rows, head: Tensor, kept: Tensor | None, columns: Tensor) -> None:
    """By the formulas above; what the kernels do, slowly."""
    place, temperature = rows.targets[:, None], rows.temperature[:, None]
    logits = product(rows.hidden, head.t())
    target = reference = logits.gather(1, place)
    for _ in range(2):
        distance = (logits - reference) / temperature
        ratios = distance.exp().scatter(1, place, 0.0)
        others = ratios.sum(dim=1, keepdim=True)
        reference = torch.where(others < LIMIT, reference, logits.amax(dim=1, keepdim=True))
    own_distance = (target - reference) / temperature
    own = own_distance.exp()
    total = own + others
    weighted = torch.where(ratios > 0, ratios * distance, 0.0).sum(dim=1, keepdim=True)
    weighted += torch.where(own > 0, own * own_distance, 0.0)
    columns[0] = (own_distance - total.log())[:, 0]
    columns[1] = (total.log() - weighted / total)[:, 0]
    columns[2] = (-1.0 / (total * temperature))[:, 0]
    if kept is not None:
        kept.copy_(ratios.scatter(1, place, -others))


@dataclass(frozen=True)
class Ratios:
    """Keeps w; ``scale`` is -1 / (S T)."""

    fold: Fold = fold_in_torch
    chunk_logits: int = 5 << 28
    """Ratios that stand at once (bfloat16: 2.5 GiB). Few long products are faster than many short ones."""

    def chunk_rows(self, rows: int, vocabulary: int) -> int:
        """As many as ``chunk_logits`` allows, but all chunks about equal."""
        most = max(1, self.chunk_logits // vocabulary)
        even = max(1, _divided(rows, max(1, _divided(rows, most))))
        return even if most < _TILE else _divided(even, _TILE) * _TILE

    def score(self, rows: Rows, head: Tensor, *, keep: bool) -> Scored:
        """Statistics of ``rows``."""
        count, vocabulary = len(rows), head.shape[0]
        columns = rows.temperature.new_empty(3, count)
        # Rows begin where the hardware can write tiles to.
        kept = rows.hidden.new_empty(count, _divided(vocabulary, 8) * 8)[:, :vocabulary] if keep else None
        self.fold(rows, head, kept, columns)
        logprobs, entropy, scale = columns
        return Scored(logprobs, entropy, kept, scale)

    def add(self, rows: Rows, head: Tensor, scored: Scored, slope: Tensor, into: Gradients) -> None:
        """Add ``slope`` times d logprob / d logit."""
        assert scored.kept is not None  # noqa: S101 - kept for this
        factor = (slope * scored.scale)[:, None]
        into.hidden.copy_(product(scored.kept, head).mul_(factor))
        if into.head is not None:
            # By way of float32: an operation on two dtypes takes several times as long as these three.
            scaled = rows.hidden.float() * factor
            add_product(into.head, scored.kept.t(), scaled.to(rows.hidden.dtype))


def _divided(count: int, by: int) -> int:
    """Rounded up."""
    return -(-count // by)
