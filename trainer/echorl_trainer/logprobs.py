"""Logprobs and entropies of chosen tokens from hidden states, without ever holding all logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_LOGITS = 1 << 27
"""Logits that stand at once (float32: 512 MiB, and about as much again for what is made of them)."""


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor, *, chunk_logits: int = _CHUNK_LOGITS
) -> tuple[Tensor, Tensor]:
    """Log-softmax of ``hidden @ head.T / temperature`` at ``targets``, and the entropy of that distribution.

    Shapes: ``hidden`` [K, H] and ``head`` [V, H] of the compute dtype, ``targets`` int64 [K], ``temperature`` float32
    [K]. Both results are float32 [K], natural log; logits and all that follows are float32 whatever the inputs are.
    Only logprobs carry a gradient. Logits are computed in chunks and again in backward, so memory is bounded by
    ``chunk_logits`` and not by K times V.
    """
    rows = max(1, chunk_logits // head.shape[0])
    logprobs, entropy = _TokenLogprobs.apply(hidden, head, targets, temperature, rows)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def _float32_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Product in float32, whatever the inputs: half-precision logits would be rounded to three digits."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _scaled_logits(hidden: Tensor, head: Tensor, temperature: Tensor) -> Tensor:
    return _float32_matmul(hidden, head.t()).div_(temperature[:, None])


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        entropy, normaliser = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for begin in range(0, hidden.shape[0], rows):
            part = slice(begin, begin + rows)
            logits = _scaled_logits(hidden[part], head, temperature[part])
            normaliser[part] = torch.logsumexp(logits, dim=-1)
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            logprobs[part] = chosen - normaliser[part]
            probabilities = (logits - normaliser[part, None]).exp_()
            entropy[part] = normaliser[part] - probabilities.mul_(logits).sum(dim=-1)
        ctx.save_for_backward(hidden, head, targets, temperature, normaliser)
        ctx.rows = rows
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, temperature, normaliser = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        grad_head = torch.zeros_like(head, dtype=torch.float32)
        for begin in range(0, hidden.shape[0], ctx.rows):
            part = slice(begin, begin + ctx.rows)
            logits = _scaled_logits(hidden[part], head, temperature[part])
            # d logprob / d logit = (1[target] - probability) / temperature
            slope = (grad[part] / temperature[part])[:, None]
            grad_logits = logits.sub_(normaliser[part, None]).exp_().mul_(-slope)
            grad_logits.scatter_add_(1, targets[part, None], slope)
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[part] = grad_logits @ head
            grad_head += _float32_matmul(grad_logits.t(), hidden[part])
        return grad_hidden, grad_head.to(head.dtype), None, None, None
