"""Kernels of attention over documents packed end to end, and the best of them that a machine has.

FlashAttention 4     where the package ``flash-attn-4`` is installed and the GPU is a Hopper or newer
torch varlen_attn    torch 2.10 and newer
flash-attn           where that package is installed
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
import torch
from torch import Tensor

Heads = tuple[Tensor, Tensor, Tensor]
"""Query [T, H, D], key and value [T, G, D]."""

VarlenRun = Callable[[Heads, Tensor, int, float], Tensor]
"""Of heads, cu_seqlens, the longest document's length and the scale; gives [T, H, D]."""

_HOPPER = (9, 0)
_ERROR = 0.02
"""Of a trial's sums, in half precision."""

log = structlog.get_logger()


class HeadCounts(NamedTuple):
    """Of an attention layer."""

    query: int
    key_value: int
    size: int
    """Elements of a head."""


@dataclass(frozen=True)
class VarlenKernel:
    """Attention where every token sees itself and what is before it in its document."""

    name: str
    """For people."""
    run: VarlenRun


def installed_kernels() -> Iterator[VarlenKernel]:
    """The kernels that are installed and made for this machine's GPUs, the fastest first."""
    for found in (_flash_attention_4, _torch, _flash):
        if (kernel := found()) is not None:
            yield kernel


def working_kernel(device: torch.device, dtype: torch.dtype, heads: HeadCounts) -> VarlenKernel | None:
    """The fastest kernel that computes a few tokens of so many heads forward and backward; None: there is none.

    FlashAttention 4 is compiled at its first use, by tools and in a folder of its own.
    """
    for kernel in installed_kernels():
        try:
            _try(kernel, device, dtype, heads)
        except Exception as error:
            log.warning("attention kernel does not work here, another is used", kernel=kernel.name, error=str(error))
        else:
            return kernel
    return None


@torch.enable_grad()
def _try(kernel: VarlenKernel, device: torch.device, dtype: torch.dtype, heads: HeadCounts) -> None:
    tokens = 8
    query, key, value = (
        torch.ones(tokens, count, heads.size, device=device, dtype=dtype, requires_grad=True)
        for count in (heads.query, heads.key_value, heads.key_value)
    )
    documents = torch.tensor([0, 3, tokens], device=device, dtype=torch.int32)
    output = kernel.run((query, key, value), documents, 5, heads.size**-0.5)
    output.sum().backward()  # type: ignore[no-untyped-call]
    # Attention to equal values gives that value, and an error of a kernel shows when it is waited for.
    if value.grad is None or abs(float(value.grad.sum()) / (tokens * heads.query * heads.size) - 1) > _ERROR:
        raise ArithmeticError("gradients of a trial are wrong")


def kernel_operators() -> list[Any]:
    """The kernels' operators that torch knows: what checkpointing by products keeps, as it keeps matrix products."""
    names = (("torch_attn", "_varlen_attn"), ("echorl", "flash_attention_4"))
    spaces = [(getattr(torch.ops, space, None), name) for space, name in names]
    return [getattr(space, name).default for space, name in spaces if space is not None and hasattr(space, name)]


def _flash_attention_4() -> VarlenKernel | None:
    if torch.cuda.get_device_capability() < _HOPPER:
        return None
    try:
        operator = importlib.import_module("echorl_trainer.flash_attention_4").flash_attention_4
    except (ImportError, AttributeError):  # not installed, or a release with other functions
        return None

    def run(heads: Heads, cu: Tensor, longest: int, scale: float) -> Tensor:
        query, key, value = (part.contiguous() for part in heads)
        output: Tensor = operator(query, key, value, cu, longest, scale)[0]
        return output

    return VarlenKernel("FlashAttention 4", run)


def _torch() -> VarlenKernel | None:
    try:
        varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    parameters = inspect.signature(varlen_attn).parameters
    fixed: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in parameters else {"is_causal": True}
    knows_gqa = "enable_gqa" in parameters

    def run(heads: Heads, cu: Tensor, longest: int, scale: float) -> Tensor:
        grouped = heads[0].shape[1] != heads[1].shape[1]
        options = fixed | ({"enable_gqa": True} if grouped and knows_gqa else {})
        output: Tensor = varlen_attn(*heads, cu, cu, longest, longest, scale=scale, **options)
        return output

    return VarlenKernel("torch varlen_attn", run)


def _flash() -> VarlenKernel | None:
    try:
        flash = importlib.import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError):  # FlashAttention 4 alone puts a package of that name there, too
        return None

    def run(heads: Heads, cu: Tensor, longest: int, scale: float) -> Tensor:
        output: Tensor = flash(*heads, cu, cu, longest, longest, softmax_scale=scale, causal=True)
        return output

    return VarlenKernel("flash-attn", run)
