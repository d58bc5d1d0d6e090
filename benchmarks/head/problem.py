"""What every side computes: a loss with two components on rows of hidden states, ordinary and peaked ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from echorl_trainer.losses import cross_entropy_loss, dppo_loss

GAIN = 3.0
"""Standard deviation of an ordinary row's logits."""
MARGIN = 40.0
"""A peaked row's target stands out by up to this many nats."""


@dataclass(frozen=True)
class Problem:
    """K rows, a third of them peaked; 7 of 16 train by RL, 9 of 16 by ECHO."""

    hidden: Tensor
    """[K, H], with a gradient."""
    head: Tensor
    """[V, H], with a gradient."""
    targets: Tensor
    temperature: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    rl_weight: Tensor
    ce_weight: Tensor

    def objective(self, logprobs: Tensor) -> Tensor:
        """DPPO and ECHO, in the precision of ``logprobs``."""
        every = (self.sampler_logprobs, self.advantages, self.rl_weight, self.ce_weight)
        sampler, advantages, rl_weight, ce_weight = (one.to(logprobs.dtype) for one in every)
        rows = float(len(self.targets))
        columns = (logprobs, sampler, advantages, rl_weight)
        rl = dppo_loss(*columns, mask_low=0.2, mask_high=0.2, kl_tau=1e-3, denominator=rows)
        return rl.loss + cross_entropy_loss(logprobs, ce_weight, denominator=rows).loss

    def clear(self) -> None:
        """Forget the gradients."""
        self.hidden.grad = self.head.grad = None

    def first(self, rows: int) -> "Problem":
        """The same on fewer rows."""
        columns = (self.targets, self.temperature, self.sampler_logprobs, self.advantages, self.rl_weight)
        hidden, head = (one.detach().clone().requires_grad_() for one in (self.hidden[:rows], self.head))
        return Problem(hidden, head, *(column[:rows] for column in (*columns, self.ce_weight)))


def problem(rows: int, width: int, vocabulary: int, *, seed: int, device: torch.device, dtype: torch.dtype) -> Problem:
    """Draw one; the sampler's logprobs are near the true ones of peaked rows and of the order of the others'."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    def uniform() -> Tensor:
        return torch.rand(rows, generator=generator, device=device)

    head = normal(vocabulary, width).mul_(GAIN / width**0.5).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=generator, device=device)
    hidden = normal(rows, width)
    peaked = uniform() < 1 / 3
    margin = torch.where(peaked, MARGIN * uniform(), 0.0)
    hidden += margin[:, None] / GAIN**2 * head[targets]
    action = torch.arange(rows, device=device) % 16 < 7
    return Problem(
        hidden=hidden.to(dtype).requires_grad_(),
        head=head.requires_grad_(),
        targets=targets,
        temperature=0.6 + 0.6 * uniform(),
        sampler_logprobs=torch.where(peaked, -uniform(), -12.0 + normal(rows)),
        advantages=normal(rows),
        rl_weight=action.float(),
        ce_weight=0.05 * (~action).float(),
    )
