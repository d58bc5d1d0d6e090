"""Tokens and experts, drawn from a seed."""

import torch
from torch import Tensor

from echorl_trainer.grouped_products import Groups


def drawn_groups(
    tokens: int, each: int, experts: int, *, width: int, inside: int, seed: int
) -> tuple[tuple[Tensor, Tensor, Tensor], Groups]:
    """Tokens [T, H], stacks [E, I, H] and [E, H, I] in float32, and where rows go: the last expert gets none.

    ``each``: experts of a token, at most all others.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, experts - 1, generator=generator).argsort(dim=1)[:, :each]
    ids, order = torch.sort(chosen.flatten(), stable=True)
    bounds = torch.searchsorted(ids, torch.arange(experts + 1)).to(torch.int32)
    groups = Groups(bounds, (order // chosen.shape[1]).to(torch.int32), torch.argsort(order))
    shapes = ((tokens, width), (experts, inside, width), (experts, width, inside))
    rows, up, down = (torch.randn(shape, generator=generator) for shape in shapes)
    return (rows, up, down), groups
