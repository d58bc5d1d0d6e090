"""FlashAttention 4 (``flash_attn.cute``) over packed documents as an operator of torch.

As an operator the compiler passes over it without a break in the graph, and checkpointing by products can keep what it
made. The package has an autograd function alone, which neither can see through, so its two halves are called here.
Importing this fails where the package is not installed, or is a release without them.
"""

from typing import Any

import torch
from flash_attn.cute import interface
from torch import Tensor

_forward, _backward = interface._flash_attn_fwd, interface._flash_attn_bwd


@torch.library.custom_op("echorl::flash_attention_4", mutates_args=(), device_types="cuda")
def flash_attention_4(  # noqa: PLR0917 - an operator has no keywords
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Causal attention within documents.

    Args:
        query: [T, H, D], contiguous, in half precision.
        key: [T, G, D], likewise; H is a multiple of G.
        value: [T, G, D], likewise.
        cu_seqlens: int32 [S + 1].
        longest: tokens of the longest document.
        scale: as the next two, see ``Scoring``.
        window: at least 1.
        softcap: above 0.

    Returns:
        The output [T, H, D], and float32 [H, T], natural log of the sum of each token's exponentiated scores.
    """
    output, log_sum, *_ = _forward(
        query,
        key,
        value,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        softmax_scale=scale,
        causal=True,
        softcap=softcap,
        window_size_left=_left(window),
        return_lse=True,
    )
    return output, log_sum


def _left(window: int | None) -> int | None:
    return None if window is None else window - 1


@flash_attention_4.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    tokens, heads = query.shape[:2]
    return query.new_empty(query.shape), query.new_empty((heads, tokens), dtype=torch.float32)


@torch.library.custom_op("echorl::flash_attention_4_backward", mutates_args=(), device_types="cuda")
def _gradients(  # noqa: PLR0917 - as above
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    into = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in (query, key, value)]
    _backward(
        query,
        key,
        value,
        output,
        gradient.contiguous(),
        log_sum,
        scale,
        causal=True,
        softcap=softcap or 0.0,
        window_size_left=_left(window),
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        dq=into[0],
        dk=into[1],
        dv=into[2],
    )
    return into[0], into[1], into[2]


@_gradients.register_fake
def _(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, cu_seqlens, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output, cu_seqlens)
    ctx.set_materialize_grads(False)


def _differentiate(context: Any, gradient: Tensor | None, _of_log_sum: None) -> tuple[Tensor | None, ...]:
    query, key, value, output, log_sum, cu_seqlens = context.saved_tensors
    if gradient is None:
        gradient = torch.zeros_like(output)
    found = _gradients(gradient, query, key, value, output, log_sum, cu_seqlens, *context.options)
    return *found, None, None, None, None, None


flash_attention_4.register_autograd(_differentiate, setup_context=_keep)
