"""Attention over documents packed end to end: a token attends to earlier tokens of its own document, never beyond.

Registered with transformers as ``echorl_varlen``; the layout of the documents reaches it through the model's keyword
arguments, so nothing is guessed from position ids and no mask is ever built. On CUDA in half precision the best kernel
there is does it (``varlen_kernels``); everything else goes through sdpa over documents of like length, padded on the
right (causal: no token sees the padding), or where sdpa would need a mask, for a window or a softcap, through
``block_attention``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from echorl_trainer.block_attention import Scoring, block_attention
from echorl_trainer.context import HeadExchange, repeated_heads
from echorl_trainer.varlen_kernels import HeadCounts, Heads, VarlenKernel, working_kernel

NAME = "echorl_varlen"

# A document joins a bucket while it fills this share of the bucket's width: less padding against more kernel calls.
_MIN_FILL = 0.8

_kernel: VarlenKernel | None = None
"""What ``choose_kernel`` chose. The driver is not asked at import, which would keep forked processes from GPUs."""


@dataclass(frozen=True)
class Bucket:
    """Documents of like length: ``tokens`` [documents, width] holds packed positions; padding repeats the last one."""

    tokens: Tensor


@dataclass(frozen=True)
class Documents:
    """Where the documents of a pack of T tokens lie."""

    cu_seqlens: Tensor
    """int32 [S + 1], on the device: document s is tokens ``cu_seqlens[s]:cu_seqlens[s + 1]``."""
    max_len: int
    buckets: tuple[Bucket, ...] = ()
    """Empty for a varlen kernel. One bucket without padding and in packed order needs no gathering."""
    restore: Tensor | None = None
    """int64 [T]: where each packed token stands in the buckets' concatenated outputs; None: they are in order."""
    exchange: HeadExchange | None = None
    """Of ranks that have a slice of the pack each; None: this one has it whole."""


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packs of this kind go through a varlen kernel (which wants CUDA and half precision)."""
    return _kernel is not None and _suits_kernels(device, dtype)


def _suits_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def kernel_name(device: torch.device, dtype: torch.dtype) -> str:
    """What packs of this kind go through, for people: a kernel's name, or ``sdpa by document``."""
    return _kernel.name if _kernel is not None and has_varlen_kernel(device, dtype) else "sdpa by document"


def head_counts(config: Any, context: int = 1) -> HeadCounts:
    """Heads of an attention layer of a model that ``transformers`` describes, those of one of ``context`` ranks.

    Raises:
        ValueError: so many ranks cannot have equal shares of them.
    """
    query = config.num_attention_heads
    key_value = getattr(config, "num_key_value_heads", None) or query
    if query % context:
        raise ValueError(f"context: found {context}, accepted is a divisor of the model's {query} attention heads")
    size = getattr(config, "head_dim", None) or config.hidden_size // query
    return HeadCounts(query // context, key_value * repeated_heads(key_value, context) // context, size)


def choose_kernel(device: torch.device, dtype: torch.dtype, config: Any, context: int = 1) -> None:
    """Use, from now on, the fastest varlen kernel that works on this device for all layers of a model.

    Raises:
        ValueError: ``context`` ranks cannot have equal shares of its heads.
    """
    global _kernel  # noqa: PLW0603 - one model is trained in a process, and compiled code is to see a constant
    heads = head_counts(config, context)
    if not _suits_kernels(device, dtype):
        return
    # Small numbers, so that a few tokens show whether windows and softcaps are heeded.
    cap = None if getattr(config, "attn_logit_softcapping", None) is None else 0.5
    windows = [None] if getattr(config, "sliding_window", None) is None else [None, 2]
    _kernel = working_kernel(device, dtype, heads, [Scoring(heads.size**-0.5, window, cap) for window in windows])


def document_layout(
    cu_seqlens: Tensor, max_len: int, dtype: torch.dtype, exchange: HeadExchange | None = None
) -> Documents:
    """The layout of a pack for the kernel that its device and compute dtype get. Once per pack, not per layer."""
    if has_varlen_kernel(cu_seqlens.device, dtype):
        return Documents(cu_seqlens, max_len, exchange=exchange)
    starts = cu_seqlens.cpu().numpy().astype(np.int64)
    lengths = np.diff(starts)
    if (lengths == max_len).all():
        tokens = torch.arange(int(starts[-1]), device=cu_seqlens.device).view(-1, max_len)
        return Documents(cu_seqlens, max_len, (Bucket(tokens),), exchange=exchange)
    rows = [
        starts[chosen, None] + np.minimum(np.arange(lengths[chosen].max()), lengths[chosen, None] - 1)
        for chosen in _like_lengths(lengths)
    ]
    restore = np.empty(int(starts[-1]), dtype=np.int64)
    slots = np.concatenate([block.ravel() for block in rows])
    # Padding repeats a document's last token; assigned in reverse, the first slot of every token wins.
    restore[slots[::-1]] = np.arange(slots.size)[::-1]
    buckets = tuple(Bucket(torch.from_numpy(block).to(cu_seqlens.device)) for block in rows)
    return Documents(cu_seqlens, max_len, buckets, torch.from_numpy(restore).to(cu_seqlens.device), exchange)


def _like_lengths(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Document numbers, longest first, cut wherever one would fill too little of the widest."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[NDArray[np.int64]] = []
    begin = 0
    while begin < order.size:
        width = lengths[order[begin]]
        end = begin + int(np.searchsorted(-lengths[order[begin:]], -_MIN_FILL * width, side="right"))
        groups.append(order[begin:end])
        begin = end
    return groups


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    documents: Documents | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' interface: query [1, H, T, D], key and value [1, G, T, D]; returns [1, T, H, D].

    Where ranks share the pack, T is the length of a slice.

    Raises:
        ValueError: the layout is missing, or the model wants what is not supported here.
    """
    if documents is None:
        raise ValueError(f"{NAME}: the document layout is missing; call the model through Policy.forward")
    wanted = {
        "an attention mask": attention_mask is not None,
        "dropout": dropout > 0,
    }
    if any(wanted.values()):
        names = ", ".join(name for name, set_ in wanted.items() if set_)
        raise ValueError(f"{NAME}: not supported yet: {names}")
    scoring = Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    heads = (query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
    if documents.exchange is None:
        return _attention(heads, documents, scoring)[None], None
    output = _attention(documents.exchange.to_heads(heads), documents, scoring)
    return documents.exchange.to_tokens(output)[None], None


def _attention(heads: Heads, documents: Documents, scoring: Scoring) -> Tensor:
    """Of a whole pack; [T, H, D]."""
    if documents.buckets or _kernel is None:
        return _bucketed(heads, documents, scoring)
    return _kernel.run(heads, documents.cu_seqlens, documents.max_len, scoring)


def _bucketed(heads: Heads, documents: Documents, scoring: Scoring) -> Tensor:
    """One call per bucket; [T, H, D]."""
    outputs = []
    for bucket in documents.buckets:
        shape = bucket.tokens.shape
        rows = [
            part.view(*shape, *part.shape[1:]) if documents.restore is None else part[bucket.tokens] for part in heads
        ]
        query, key, value = (part.transpose(1, 2) for part in rows)
        if scoring.softcap is None and (scoring.window is None or scoring.window >= shape[1]):
            output = _sdpa(query, key, value, scoring.scale)
        else:
            output = block_attention(query, key, value, *scoring)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    if documents.restore is None:
        return outputs[0]
    return torch.cat(outputs)[documents.restore]


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    if query.is_cuda and query.dtype == torch.float32:
        # With grouped heads, float32 would get the kernel that holds all scores: quadratic memory.
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    # Said where it is so alone, as the compiler takes no comparison of numbers that it holds for variable.
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, **grouped)


AttentionInterface.register(NAME, packed_attention)
