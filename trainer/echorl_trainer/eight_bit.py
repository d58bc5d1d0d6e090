"""Values in 8 bits: dynamic block-wise quantisation (Dettmers et al., arXiv:2110.02861).

    value = scale * book[code]          scale: the largest magnitude of a block of BLOCK values of one row

The book of 256 values is the finer the larger the value: a decade below 1 has 64 values of each sign, the next 32, down
to one at 1e-6; without signs twice as many. Blocks end with their row, so rows can go to any rank.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 256
_DECADES = 7


@lru_cache
def code_book(*, signed: bool, device: torch.device | None = None) -> Tensor:
    """The 256 values that a code can stand for, ascending: float32, in [-1, 1] or [0, 1], 0 and 1 among them."""
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        steps = 2**decade * (1 if signed else 2)
        for step in range(steps):
            value = 10.0 ** (decade - _DECADES + 1) * (0.1 + 0.9 * (step + 0.5) / steps)
            values += [value, -value] if signed else [value]
    return torch.tensor(sorted(values), dtype=torch.float64).to(device, torch.float32)


def encode(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes and scales of float32 [..., columns]: uint8 of the same shape, float32 [..., ceil(columns / BLOCK)].

    A code is that of the nearest value. Without signs no value above 0 becomes 0: one divides by the root of what they
    stand for.
    """
    columns = values.shape[-1]
    blocks = functional.pad(values, (0, -columns % BLOCK)).view(*values.shape[:-1], -(-columns // BLOCK), BLOCK)
    scales = blocks.abs().amax(-1)
    shares = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    book = code_book(signed=signed, device=values.device)
    codes = torch.bucketize(shares, (book[:-1] + book[1:]) / 2, out_int32=True)
    if not signed:
        codes = torch.where(blocks > 0, codes.clamp(min=1), codes)
    return codes.to(torch.uint8).flatten(-2)[..., :columns], scales


def decode(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """The float32 values that ``codes`` and ``scales`` stand for."""
    shares = code_book(signed=signed, device=codes.device).index_select(0, codes.flatten().int()).view(codes.shape)
    return shares * scales.repeat_interleave(BLOCK, dim=-1)[..., : codes.shape[-1]]
