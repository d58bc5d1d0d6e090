"""Hidden states to logprobs and to a loss: what autograd sees of the head.

A loss whose every token depends on its own logprob alone has its slopes as soon as a chunk is scored. So
``token_loss`` forms the gradients in the forward, with three products and nothing computed twice. Where a slope needs
other tokens, ``token_logprobs`` scores a chunk again in the backward: four products.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from echorl_trainer.head.chunk import Arithmetic, Gradients, Rows
from echorl_trainer.head.ratios import Ratios
from echorl_trainer.head.softmax import CappedSoftmax, Softmax

Objective = Callable[[Tensor], Tensor]
"""A scalar loss of float32 [K] logprobs, as operations that autograd follows."""


def token_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    softcap: float | None = None,
    arithmetic: Arithmetic | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-softmax of ``hidden @ head.T / temperature`` at ``targets``, and the entropy of that distribution.

    ``softcap`` c: of ``c * tanh(hidden @ head.T / c) / temperature``; an ``arithmetic`` that is given knows its own.

    Shapes: ``hidden`` [K, H] and ``head`` [V, H] of the compute dtype, ``targets`` int64 [K], ``temperature`` float32
    [K]. Both results are float32 [K], natural log; logits and all that follows are float32 whatever the inputs are.
    Only logprobs carry a gradient. Logits are computed in chunks and again in backward, so memory is bounded by the
    arithmetic's chunk and not by K times V.
    """
    chosen = arithmetic or _arithmetic(hidden, head, softcap)
    logprobs, entropy = _TokenLogprobs.apply(hidden, head, targets, temperature, chosen)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def token_loss(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    objective: Objective,
    *,
    softcap: float | None = None,
    arithmetic: Arithmetic | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``objective`` of the logprobs, with a gradient; then logprobs and entropies as ``token_logprobs``, without.

    A token's part of ``objective`` depends on that token's logprob alone; nothing checks it. It is called once per
    chunk, on logprobs of which those of later chunks are still 0, and at last on all of them, without a gradient.
    """
    chosen = arithmetic or _arithmetic(hidden, head, softcap)
    loss, logprobs, entropy = _TokenLoss.apply(hidden, head, targets, temperature, chosen, objective)  # type: ignore[no-untyped-call]
    return loss, logprobs, entropy


def _arithmetic(hidden: Tensor, head: Tensor, softcap: float | None) -> Arithmetic:
    if softcap is not None:
        return CappedSoftmax(softcap)
    if hidden.is_cuda:
        from echorl_trainer.head import kernels  # noqa: PLC0415 - there is no Triton elsewhere

        if kernels.can_fold(hidden, head):
            return Ratios(kernels.fold_on_device)
    return Softmax()


def _parts(rows: Rows, head: Tensor, arithmetic: Arithmetic) -> Iterator[slice]:
    step = arithmetic.chunk_rows(len(rows), head.shape[0])
    for begin in range(0, len(rows), step):
        yield slice(begin, begin + step)


def _zeros(hidden: Tensor, head: Tensor, *, head_trains: bool) -> Gradients:
    return Gradients(torch.zeros_like(hidden), torch.zeros_like(head, dtype=torch.float32) if head_trains else None)


def _slopes(objective: Objective, logprobs: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = logprobs.clone().requires_grad_()
        (slopes,) = torch.autograd.grad(objective(leaf), leaf)
    return slopes


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor, arithmetic: Arithmetic
    ) -> tuple[Tensor, Tensor]:
        rows = Rows(hidden, targets, temperature)
        logprobs, entropy = torch.empty_like(temperature), torch.empty_like(temperature)
        for part in _parts(rows, head, arithmetic):
            scored = arithmetic.score(rows[part], head, keep=False)
            logprobs[part], entropy[part] = scored.logprobs, scored.entropy
        ctx.save_for_backward(hidden, head, targets, temperature)
        ctx.arithmetic = arithmetic
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, temperature = ctx.saved_tensors
        rows = Rows(hidden, targets, temperature)
        gradients = _zeros(hidden, head, head_trains=ctx.needs_input_grad[1])
        for part in _parts(rows, head, ctx.arithmetic):
            scored = ctx.arithmetic.score(rows[part], head, keep=True)
            ctx.arithmetic.add(rows[part], head, scored, grad[part], gradients[part])
            del scored  # so that the next chunk's does not stand beside it
        return gradients.hidden, None if gradients.head is None else gradients.head.to(head.dtype), None, None, None


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        temperature: Tensor,
        arithmetic: Arithmetic,
        objective: Objective,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = Rows(hidden, targets, temperature)
        logprobs, entropy = torch.zeros_like(temperature), torch.empty_like(temperature)
        gradients = _zeros(hidden, head, head_trains=ctx.needs_input_grad[1])
        for part in _parts(rows, head, arithmetic):
            scored = arithmetic.score(rows[part], head, keep=True)
            logprobs[part], entropy[part] = scored.logprobs, scored.entropy
            slopes = _slopes(objective, logprobs)
            arithmetic.add(rows[part], head, scored, slopes[part], gradients[part])
            del scored  # so that the next chunk's does not stand beside it
        ctx.gradients, ctx.head_dtype = gradients, head.dtype
        ctx.mark_non_differentiable(logprobs, entropy)
        return objective(logprobs), logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        of_head = ctx.gradients.head
        if of_head is not None:
            of_head = torch.mul(of_head, grad, out=torch.empty_like(of_head, dtype=ctx.head_dtype))
        return ctx.gradients.hidden * grad, of_head, None, None, None, None
