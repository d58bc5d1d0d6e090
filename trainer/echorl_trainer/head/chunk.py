"""What a chunk of scored tokens is, and what an arithmetic does with one."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Tokens to score: R rows of hidden states, and what is asked of them."""

    hidden: Tensor
    """[R, H], of the compute dtype."""
    targets: Tensor
    """int64 [R]."""
    temperature: Tensor
    """float32 [R], above 0."""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, part: slice) -> "Rows":
        return Rows(self.hidden[part], self.targets[part], self.temperature[part])


@dataclass(frozen=True)
class Scored:
    """A chunk's statistics, float32 [R] each, and what the gradient of its logits is made of."""

    logprobs: Tensor
    entropy: Tensor
    kept: Tensor | None
    """[R, V], of the arithmetic's own meaning; None where no gradient follows."""
    scale: Tensor
    """float32 [R]: what multiplies a row of ``kept``."""


@dataclass(frozen=True)
class Gradients:
    """Sums over chunks."""

    hidden: Tensor
    """[K, H], of the compute dtype."""
    head: Tensor | None
    """float32 [V, H]; None where the head does not train."""

    def __getitem__(self, part: slice) -> "Gradients":
        return Gradients(self.hidden[part], self.head)


class Arithmetic(Protocol):
    """How logits of a chunk become statistics, and a slope per token becomes gradients."""

    def chunk_rows(self, rows: int, vocabulary: int) -> int:
        """The rows of a chunk, of ``rows`` in all; at least 1."""
        ...

    def score(self, rows: Rows, head: Tensor, *, keep: bool) -> Scored:
        """Statistics of ``rows``; ``keep``: with what ``add`` needs."""
        ...

    def add(self, rows: Rows, head: Tensor, scored: Scored, slope: Tensor, into: Gradients) -> None:
        """Write the gradient of the rows' hidden states, and add to the head's.

        Uses up ``scored.kept``. ``slope``: float32 [R], of the loss with respect to each logprob.
        """
        ...


def product(left: Tensor, right: Tensor) -> Tensor:
    """Product in float32, whatever the inputs: half-precision logits would be rounded to three digits."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to ``total``, float32, in place; on CUDA nothing of its size is made beside it."""
    if left.is_cuda and left.dtype != torch.float32:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    elif left.is_cuda:
        total.addmm_(left, right)
    else:
        total += product(left, right)
