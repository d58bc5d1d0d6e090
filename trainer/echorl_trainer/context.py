"""Context parallelism: N ranks share a pack, each has a slice of its tokens, and attention is split by heads.

    slice of the tokens, all heads -> exchange -> all tokens, some heads -> attention -> exchange -> slice, all heads

Everything but attention looks at one token at a time, so a slice is enough for it; attention sees documents whole. This
is Ulysses (arXiv:2309.14509). The last slices are filled up with tokens that no other token ever sees.

What ranks scored is gathered, and each computes the loss of the whole pack from it; backward, a rank's tokens get their
part of that. So gradients add up over the ranks of a group as they do over ranks with packs of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.nn.functional import pad


@dataclass(frozen=True)
class ContextGroup:
    """The ranks that share this one's packs."""

    group: ProcessGroup
    index: int
    """This rank's place among them."""
    size: int
    """N."""

    def slice_of(self, tokens: int) -> "ContextSlice":
        """This rank's part of a pack of T tokens."""
        return ContextSlice(self, tokens, slice_tokens(tokens, self.size))


@dataclass(frozen=True)
class ContextSlice:
    """L consecutive tokens of a pack; the last slices reach beyond its end."""

    of: ContextGroup
    tokens: int
    """Of the whole pack, T."""
    length: int
    """L."""

    @property
    def begin(self) -> int:
        """Place of the slice's first token in the pack, maybe beyond its end."""
        return self.of.index * self.length

    @property
    def padding(self) -> int:
        """How many of the slice's tokens are not the pack's."""
        return min(self.length, max(0, self.begin + self.length - self.tokens))

    @property
    def exchange(self) -> "HeadExchange":
        """How attention sees the pack whole."""
        return HeadExchange(self.of.group.group_name, self.of.size, self.of.size * self.length - self.tokens)

    def part(self, values: Tensor, beyond: int = 0) -> Tensor:
        """Of a pack's column [T, ...] this rank's [L, ...], and ``beyond`` where there are no more tokens."""
        own = values[self.begin : self.begin + self.length]
        return pad(own, (0, 0) * (own.ndim - 1) + (0, self.length - len(own)), value=beyond)

    def gathered(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """All ranks' columns, in order of ranks: from [C, n] of this rank, n being ``counts[index]``, to [C, sum].

        Every rank is to compute the same from it: the gradient of what is this rank's is not added up over ranks.
        """
        whole: Tensor = _Gathered.apply(own, tuple(counts), self.of)  # type: ignore[no-untyped-call]
        return whole


def slice_tokens(tokens: int, size: int) -> int:
    """Length of each of ``size`` slices that hold so many tokens together."""
    return -(-tokens // size)


def row_counts(rows: NDArray[np.int64], tokens: int, size: int) -> tuple[int, ...]:
    """How many of ``rows`` (ascending) each rank scores: a token is scored where the token before it is."""
    ends = slice_tokens(tokens, size) * np.arange(1, size + 1)
    return tuple(np.diff(np.searchsorted(rows - 1, ends), prepend=0).tolist())


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], among: ContextGroup) -> Tensor:
        ctx.begin, ctx.end = sum(counts[: among.index]), sum(counts[: among.index + 1])
        longest = max(counts)
        if not longest:
            return own.clone()
        filled = pad(own, (0, longest - own.shape[1])).contiguous()
        found = [torch.empty_like(filled) for _ in counts]
        dist.all_gather(found, filled, group=among.group)
        return torch.cat([part[:, :count] for part, count in zip(found, counts, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][:, ctx.begin : ctx.end], None, None


@torch.library.custom_op("echorl::exchange", mutates_args=())
def exchange(parts: Tensor, group: str) -> Tensor:
    """Part i of [N, ...] goes to rank i of the group; part i of the result came from there.

    An operator, so the compiler passes over it without a break in the graph. Its gradient is itself.
    """
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=_resolve_process_group(group))  # type: ignore[arg-type] # a str, to an operator
    return received


@exchange.register_fake
def _(parts: Tensor, _group: str) -> Tensor:
    return parts.new_empty(parts.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = inputs[1]


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return exchange(gradient, ctx.group), None


exchange.register_autograd(_differentiate, setup_context=_keep)


def repeated_heads(key_value: int, size: int) -> int:
    """How often each of so many key and value heads is repeated, so that ``size`` ranks have equally many.

    Where the query heads divide by ``size``, each rank's then attend to the key and value heads that it has.
    """
    return size // math.gcd(key_value, size)


@dataclass(frozen=True)
class HeadExchange:
    """Exchanges heads for tokens: every rank has all heads of L tokens outside attention, and a share of them inside.

    It has no tensors, and no numbers that grow with the pack: compiled layers are not compiled again for another one.
    """

    group: str
    """Name of the process group."""
    size: int
    """Ranks in it, N."""
    padding: int
    """Tokens that fill up the last slices, of all ranks together."""

    def to_heads(self, heads: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Query [L, H, D], key and value [L, G, D], to [T, H / N, D] and [T, R G / N, D], each head R times."""
        query, key, value = heads
        repeats = repeated_heads(key.shape[1], self.size)
        if repeats > 1:
            key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        # By ranks: which has the first heads of each, which the next.
        shared = [part.reshape(len(part), self.size, -1, part.shape[-1]) for part in (query, key, value)]
        widths = [part.shape[2] for part in shared]
        received = exchange(torch.cat(shared, dim=2).transpose(0, 1), self.group)
        tokens = received.flatten(0, 1)
        query, key, value = tokens[: len(tokens) - self.padding].split(widths, dim=1)
        return query, key, value

    def to_tokens(self, output: Tensor) -> Tensor:
        """[T, H / N, D] of this rank's heads to [L, H, D] of its tokens."""
        filled = pad(output, (0, 0, 0, 0, 0, self.padding))
        received: Tensor = exchange(filled.reshape(self.size, -1, *output.shape[1:]), self.group)
        return received.transpose(0, 1).flatten(1, 2)
