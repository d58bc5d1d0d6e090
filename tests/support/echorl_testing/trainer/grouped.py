"""Tokens and experts, drawn from a seed."""

import torch
from torch import Tensor

from echorl_trainer.grouped_products import Groups


def drawn_groups(
    tokens: int, each: int, experts: int, *, width: int, inside: int, seed: int
) -> tuple[tuple[Tensor, Tensor, Tensor], Groups]:
    """Tokens [T, H], stacks [E, I, H] and [E, H, I] in float32, and where rows go: the last expert gets none."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(experts - 1, generator=generator)[:each] for _ in range(tokens)])
    each = chosen.shape[1]
    ids, order = torch.sort(chosen.flatten(), stable=True)
    bounds = torch.searchsorted(ids, torch.arange(experts + 1)).to(torch.int32)
    inverse = torch.argsort(order)
    inputs = [torch.randn(shape, generator=generator) for shape in ((tokens, width), (experts, inside, width))]
    down = torch.randn(experts, width, inside, generator=generator)
    return (inputs[0], inputs[1], down), Groups(bounds, (order // each).to(torch.int32), inverse)
