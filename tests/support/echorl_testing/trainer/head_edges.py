"""Tokens at the edge of what float32 holds, for the two forms of the head's arithmetic.

As a command under TRITON_INTERPRET=1, the kernels on a CPU.
"""

import math
import sys
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from echorl_trainer.head.chunk import Rows
from echorl_trainer.head.ratios import Fold

MARGINS = (
    (-400.0, -90.0, -60.0, -34.0, -33.0, -20.0, 0.0, 20.0, 60.0),
    (0.0,),
    (-100.0, -50.0, -20.0, 0.0, 15.0) * 28,
)


def edge(
    margins: Sequence[float],
    *,
    width: int = 16,
    vocabulary: int = 300,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Rows, Tensor]:
    """Rows whose target lies about ``margins`` nats above or below the rest."""
    generator = torch.Generator().manual_seed(len(margins))
    head = torch.randn(vocabulary, width, generator=generator)
    targets = torch.randint(vocabulary, (len(margins),), generator=generator)
    chosen = head[targets]
    hidden = torch.tensor(list(margins))[:, None] * chosen / chosen.square().sum(dim=1, keepdim=True)
    hidden = hidden + 0.3 * torch.randn(len(margins), width, generator=generator)
    temperature = 0.5 + torch.rand(len(margins), generator=generator)
    return Rows(hidden.to(device, dtype), targets.to(device), temperature.to(device)), head.to(device, dtype)


def check_edge(fold: Fold, rows: Rows, head: Tensor, *, tolerance: float, gradient: float) -> None:
    """Statistics, and w times its scale against d logprob / d logit, both row by row."""
    count, vocabulary = len(rows), head.shape[0]
    kept = torch.full((count, -(-vocabulary // 8) * 8), math.nan, dtype=head.dtype, device=head.device)[:, :vocabulary]
    columns = torch.full((3, count), math.nan, device=head.device)
    fold(rows, head, kept, columns)
    alone = torch.full_like(columns, math.nan)
    fold(rows, head, None, alone)
    torch.testing.assert_close(columns, alone, rtol=1e-6, atol=1e-6)
    logits = rows.hidden.double() @ head.double().t() / rows.temperature.double()[:, None]
    every = logits.log_softmax(-1)
    own = torch.zeros_like(every).scatter(1, rows.targets[:, None], 1.0)
    expected = every.gather(1, rows.targets[:, None])[:, 0]
    torch.testing.assert_close(columns[0].double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(columns[1].double(), -(every.exp() * every).sum(-1), rtol=tolerance, atol=tolerance)
    # What a target that has all probability leaves, without loss of digits: 1 - p.
    others = logits.masked_fill(own > 0, -math.inf).logsumexp(-1, keepdim=True)
    slope = torch.where(own > 0, (others - logits).sigmoid(), -every.exp()) / rows.temperature.double()[:, None]
    mine = kept.double() * columns[2].double()[:, None]
    off = (mine - slope).norm(dim=1) / slope.norm(dim=1).clamp(min=1e-20)
    assert float(off.max()) < gradient


def check_not_finite(fold: Fold, value: float) -> None:
    """Of three rows the second has ``value`` in its hidden state."""
    rows, head = edge([0.0, 1.0, 2.0])
    rows.hidden[1, 3] = value
    kept, columns = torch.zeros(3, 304)[:, :300], torch.zeros(3, 3)
    fold(rows, head, kept, columns)
    assert columns.isfinite().all(dim=0).tolist() == [True, False, True]
    assert kept.isfinite().all(dim=1)[[0, 2]].all()


def main() -> int:
    """The kernels over all of it; several tiles of rows, of the vocabulary and of depth are in it."""
    from echorl_trainer.head.kernels import fold_on_device  # noqa: PLC0415 - where there is no Triton

    warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's numpy overflows aloud
    for margins in MARGINS:
        for width, vocabulary in ((16, 300), (72, 523)):
            rows, head = edge(margins, width=width, vocabulary=vocabulary)
            check_edge(fold_on_device, rows, head, tolerance=1e-5, gradient=1e-3)
    for value in (math.nan, math.inf):
        check_not_finite(fold_on_device, value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
