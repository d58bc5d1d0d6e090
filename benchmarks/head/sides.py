"""The sides: each runs forward and backward of a problem, and tells logprobs and entropies where it has them."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own word
from torch import Tensor

from benchmarks.head.problem import Problem
from echorl_trainer.head import token_logprobs, token_loss
from echorl_trainer.head.softmax import Softmax

Statistics = tuple[Tensor | None, Tensor | None]
Side = Callable[[Problem], Statistics]

PEER_ROWS = 1024
"""Rows of which a peer's log-softmax is formed at once."""


def ours(problem: Problem) -> Statistics:
    """Loss and head as one operator."""
    loss, logprobs, entropy = token_loss(*_columns(problem), problem.objective)
    loss.backward()  # type: ignore[no-untyped-call]
    return logprobs, entropy


def ours_by_sequence(problem: Problem) -> Statistics:
    """What losses get whose tokens depend on each other: chunks are scored again in backward."""
    return _recomputed(problem, None)


def former(problem: Problem) -> Statistics:
    """Ours as it was: the same by plain torch, in chunks of 2^27 logits; what a CPU has now."""
    return _recomputed(problem, Softmax())


def _recomputed(problem: Problem, arithmetic: Softmax | None) -> Statistics:
    logprobs, entropy = token_logprobs(*_columns(problem), arithmetic=arithmetic)
    problem.objective(logprobs).backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), entropy


def _columns(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return problem.hidden, problem.head, problem.targets, problem.temperature


def all_logits(problem: Problem) -> Statistics:
    """TRL's formula: all logits in the compute dtype, log-softmax of them at the targets; no entropy."""
    logits = (problem.hidden @ problem.head.t()) / problem.temperature[:, None].to(problem.hidden.dtype)
    parts = zip(torch.split(logits, PEER_ROWS), torch.split(problem.targets, PEER_ROWS), strict=True)
    chosen = [F.log_softmax(part, dim=-1).gather(1, targets[:, None])[:, 0] for part, targets in parts]
    logprobs = torch.cat(chosen).float()
    problem.objective(logprobs).backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), None


def liger(problem: Problem) -> Statistics:
    """Liger's fused cross-entropy: the mean loss alone, without weights, temperature, logprobs or entropy."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy  # noqa: PLC0415 - may be missing

    liger_fused_linear_cross_entropy(problem.hidden, problem.head, problem.targets).backward()
    return None, None


def float64(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The slow reference: logprobs, entropies, and the loss's gradients of hidden states and head."""
    hidden, head = (one.detach().double().requires_grad_() for one in (problem.hidden, problem.head))
    every = (hidden @ head.t() / problem.temperature.double()[:, None]).log_softmax(dim=-1)
    logprobs = every.gather(1, problem.targets[:, None])[:, 0]
    of_hidden, of_head = torch.autograd.grad(problem.objective(logprobs), (hidden, head))
    every = every.detach()
    return logprobs.detach(), -(every.exp() * every).sum(dim=-1), of_hidden, of_head


SIDES: Mapping[str, Side] = {
    "ours": ours,
    "ours, by sequence": ours_by_sequence,
    "ours, former": former,
    "TRL's formula, all logits": all_logits,
    "Liger, mean loss alone": liger,
}
SAMELY_WEIGHTED = tuple(name for name in SIDES if name != "Liger, mean loss alone")
"""Sides whose gradients are of the problem's loss."""
