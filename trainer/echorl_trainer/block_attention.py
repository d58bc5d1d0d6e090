"""Attention by blocks of queries in plain torch: for sliding windows and capped scores where no kernel knows them.

Of a document's scores one block's stand at once, forward and backward, and of a window only keys that it reaches are
read. An operator of torch, so the compiler passes over it and checkpointing by products can keep what it made.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

_QUERIES = 256
"""Of a block."""


class Scoring(NamedTuple):
    """How a layer of attention scores what a token sees, and how much that is."""

    scale: float
    window: int | None = None
    """Tokens that one sees, itself among them; None: all before it in its document."""
    softcap: float | None = None
    """A score s becomes ``softcap * tanh(s / softcap)``; None: it stays."""


class _Block(NamedTuple):
    """Some queries of every document, and the keys that they see."""

    queries: slice
    keys: slice
    hidden: Tensor
    """bool [queries, keys]: what a query does not see."""


@torch.library.custom_op("echorl::block_attention", mutates_args=())
def block_attention(  # noqa: PLR0917 - an operator has no keywords
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention within documents of one length; computed in float32 at least.

    Args:
        query: [B, H, L, D].
        key: [B, G, L, D]; H is a multiple of G.
        value: [B, G, L, D].
        scale: as the next two, see ``Scoring``.
        window: at least 1.
        softcap: above 0.

    Returns:
        [B, H, L, D], of the query's dtype.
    """
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    for block in _blocks(query, window):
        probabilities, _ = _probabilities(query, key, block, scale, softcap)
        found = probabilities @ _wide(value[:, :, None, block.keys])
        output[:, :, block.queries] = found.flatten(1, 2).to(output.dtype)
    return output


@block_attention.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("echorl::block_attention_backward", mutates_args=())
def _gradients(  # noqa: PLR0917 - as above
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = [torch.zeros_like(_wide(part), memory_format=torch.contiguous_format) for part in (query, key, value)]
    of_query, of_key, of_value = wide
    for block in _blocks(query, window):
        probabilities, slopes = _probabilities(query, key, block, scale, softcap)
        above = _grouped(gradient, key, block)
        of_value[:, :, block.keys] += (probabilities.mT @ above).sum(dim=2)
        of_scores = above @ _wide(value[:, :, None, block.keys]).mT
        of_scores = probabilities * (of_scores - (of_scores * probabilities).sum(dim=-1, keepdim=True)) * scale
        if slopes is not None:
            of_scores = of_scores * slopes
        of_query[:, :, block.queries] = (of_scores @ _wide(key[:, :, None, block.keys])).flatten(1, 2)
        of_key[:, :, block.keys] += (of_scores.mT @ _grouped(query, key, block)).sum(dim=2)
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


@_gradients.register_fake
def _(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, *ctx.scoring = inputs
    ctx.save_for_backward(query, key, value)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients(gradient, *ctx.saved_tensors, *ctx.scoring), None, None, None


block_attention.register_autograd(_differentiate, setup_context=_keep)


def _blocks(query: Tensor, window: int | None) -> Iterator[_Block]:
    length = query.shape[2]
    places = torch.arange(length, device=query.device)
    for begin in range(0, length, _QUERIES):
        end = min(begin + _QUERIES, length)
        first = 0 if window is None else max(0, begin - window + 1)
        back = places[begin:end, None] - places[None, first:end]
        hidden = back < 0 if window is None else (back < 0) | (back >= window)
        yield _Block(slice(begin, end), slice(first, end), hidden)


def _probabilities(
    query: Tensor, key: Tensor, block: _Block, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """[B, G, H / G, queries, keys], and the slopes of capped scores by scores, likewise."""
    scores = _grouped(query, key, block) @ _wide(key[:, :, None, block.keys]).mT * scale
    slopes = None
    if softcap is not None:
        capped = torch.tanh(scores / softcap)
        scores, slopes = softcap * capped, 1.0 - capped.square()
    return scores.masked_fill(block.hidden, -torch.inf).softmax(dim=-1), slopes


def _grouped(of_queries: Tensor, key: Tensor, block: _Block) -> Tensor:
    """A block of [B, H, L, D], by the head of keys that it goes with: [B, G, H / G, queries, D]."""
    return _wide(torch.unflatten(of_queries[:, :, block.queries], 1, (key.shape[1], -1)))


def _wide(part: Tensor) -> Tensor:
    return part.to(torch.promote_types(part.dtype, torch.float32))
