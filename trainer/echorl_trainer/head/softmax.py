"""The head's arithmetic in plain torch: probabilities of a chunk, float32, by logsumexp.

A softcap c turns a logit z into c tanh(z / c) before it is divided by the temperature. What is kept then is
t = tanh(z / c), from which both the probabilities and the slope 1 - t^2 follow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_trainer.head.chunk import Gradients, Rows, Scored, add_product, product


@dataclass(frozen=True)
class Softmax:
    """Keeps probabilities; ``scale`` is the temperature."""

    chunk_logits: int = 1 << 27
    """Logits that stand at once (float32: 512 MiB, and about as much again for what is made of them)."""

    def chunk_rows(self, rows: int, vocabulary: int) -> int:
        """As many as ``chunk_logits`` allows."""
        return max(1, self.chunk_logits // vocabulary)

    def score(self, rows: Rows, head: Tensor, *, keep: bool) -> Scored:
        """Statistics of ``rows``."""
        logits = product(rows.hidden, head.t()).div_(rows.temperature[:, None])
        logprobs, entropy, _, probabilities = _statistics(logits, rows.targets)
        return Scored(logprobs, entropy, probabilities if keep else None, rows.temperature)

    def add(self, rows: Rows, head: Tensor, scored: Scored, slope: Tensor, into: Gradients) -> None:
        """Add d logprob / d logit = (1[target] - probability) / temperature, times ``slope``."""
        assert scored.kept is not None  # noqa: S101 - kept for this
        _add(rows, head, _logit_gradient(rows, scored.kept, slope), into)


@dataclass(frozen=True)
class CappedSoftmax:
    """Keeps t; ``scale`` is the logarithm of a row's normaliser."""

    softcap: float
    chunk_logits: int = 1 << 26
    """As of ``Softmax``; of these three tensors stand at once."""

    def chunk_rows(self, rows: int, vocabulary: int) -> int:
        """As many as ``chunk_logits`` allows."""
        return max(1, self.chunk_logits // vocabulary)

    def score(self, rows: Rows, head: Tensor, *, keep: bool) -> Scored:
        """Statistics of ``rows``."""
        bounded = product(rows.hidden, head.t()).div_(self.softcap).tanh_()
        logprobs, entropy, normaliser, _ = _statistics(self._tempered(bounded, rows), rows.targets)
        return Scored(logprobs, entropy, bounded if keep else None, normaliser)

    def add(self, rows: Rows, head: Tensor, scored: Scored, slope: Tensor, into: Gradients) -> None:
        """Add d logprob / d logit = (1[target] - probability) (1 - t^2) / temperature, times ``slope``."""
        assert scored.kept is not None  # noqa: S101 - kept for this
        probabilities = self._tempered(scored.kept, rows).sub_(scored.scale[:, None]).exp_()
        gradient = _logit_gradient(rows, probabilities, slope)
        _add(rows, head, gradient.mul_(scored.kept.square_().neg_().add_(1.0)), into)

    def _tempered(self, bounded: Tensor, rows: Rows) -> Tensor:
        return bounded * (self.softcap / rows.temperature)[:, None]


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logprobs, entropies, logarithms of normalisers, [R], and probabilities [R, V]; uses up tempered logits."""
    normaliser = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(1, targets[:, None]).squeeze(1)
    probabilities = (logits - normaliser[:, None]).exp_()
    entropy = normaliser - logits.mul_(probabilities).sum(dim=-1)
    return chosen - normaliser, entropy, normaliser, probabilities


def _logit_gradient(rows: Rows, probabilities: Tensor, slope: Tensor) -> Tensor:
    """(1[target] - probability) slope / temperature; uses up ``probabilities``."""
    slope = (slope / rows.temperature)[:, None]
    return probabilities.mul_(-slope).scatter_add_(1, rows.targets[:, None], slope)


def _add(rows: Rows, head: Tensor, gradient: Tensor, into: Gradients) -> None:
    gradient = gradient.to(rows.hidden.dtype)
    into.hidden[:] = gradient @ head
    if into.head is not None:
        add_product(into.head, gradient.t(), rows.hidden)
