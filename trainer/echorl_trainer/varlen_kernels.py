"""Kernels of attention over documents packed end to end, and the best of them that a machine has.

FlashAttention 4     where the package ``flash-attn-4`` is installed and the GPU is a Hopper or newer
torch varlen_attn    torch 2.10 and newer
flash-attn           where that package is installed
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
import torch
from torch import Tensor

from echorl_trainer.block_attention import Scoring, block_attention

Heads = tuple[Tensor, Tensor, Tensor]
"""Query [T, H, D], key and value [T, G, D]."""

VarlenRun = Callable[[Heads, Tensor, int, Scoring], Tensor]
"""Of heads, cu_seqlens, the longest document's length and the scoring; gives [T, H, D]."""

_HOPPER = (9, 0)
_LENGTHS = [3, 5]
"""Documents of a trial."""
_ERROR = 0.05
"""Of a trial's output and gradients in half precision, relative."""

log = structlog.get_logger()


class HeadCounts(NamedTuple):
    """Of an attention layer."""

    query: int
    key_value: int
    size: int
    """Elements of a head."""


@dataclass(frozen=True)
class VarlenKernel:
    """Attention where every token sees itself and what is before it in its document, as far as a window reaches."""

    name: str
    """For people."""
    run: VarlenRun
    """Raises NotImplementedError: there is no such scoring."""


def installed_kernels() -> Iterator[VarlenKernel]:
    """The kernels that are installed and made for this machine's GPUs, the fastest first."""
    for found in (_flash_attention_4, _torch, _flash):
        if (kernel := found()) is not None:
            yield kernel


def working_kernel(
    device: torch.device, dtype: torch.dtype, heads: HeadCounts, scorings: Collection[Scoring]
) -> VarlenKernel | None:
    """The fastest kernel that passes a trial with so many heads, scored in each of these ways; None: there is none.

    FlashAttention 4 is compiled at its first use, by tools and in a folder of its own.
    """
    for kernel in installed_kernels():
        try:
            for scoring in scorings:
                try_kernel(kernel, device, dtype, heads, scoring)
        except Exception as error:
            log.warning("attention kernel does not work here, another is used", kernel=kernel.name, error=str(error))
        else:
            return kernel
    return None


@torch.enable_grad()
def try_kernel(
    kernel: VarlenKernel, device: torch.device, dtype: torch.dtype, heads: HeadCounts, scoring: Scoring
) -> None:
    """Compare a few tokens' attention, forward and backward, with ``block_attention`` of each document.

    Raises:
        ArithmeticError: they differ.
        Exception: whatever the kernel raises.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = sum(_LENGTHS)
    mine = [
        torch.randn(tokens, count, heads.size, generator=generator).to(device, dtype).requires_grad_()
        for count in (heads.query, heads.key_value, heads.key_value)
    ]
    upstream = torch.randn(mine[0].shape, generator=generator).to(device, dtype)
    documents = torch.tensor([0, *_LENGTHS], device=device).cumsum(0).to(torch.int32)
    output = kernel.run((mine[0], mine[1], mine[2]), documents, max(_LENGTHS), scoring)
    found = [output.detach(), *torch.autograd.grad(output, mine, upstream)]
    exact = [one.detach().float().requires_grad_() for one in mine]
    split = [torch.split(one.transpose(0, 1)[None], _LENGTHS, dim=2) for one in exact]
    whole = torch.cat([block_attention(*parts, *scoring) for parts in zip(*split, strict=True)], dim=2)
    reference = whole[0].transpose(0, 1)
    wanted = [reference.detach(), *torch.autograd.grad(reference, exact, upstream.float())]
    for one, expected in zip(found, wanted, strict=True):
        error = float((one.float() - expected).norm() / expected.norm())
        if not error <= _ERROR:
            raise ArithmeticError(f"a trial's results are wrong by {error:.2g} of them ({scoring})")


def kernel_operators() -> list[Any]:
    """The attention operators that torch knows: what checkpointing by products keeps, as it keeps matrix products."""
    names = (("torch_attn", "_varlen_attn"), ("echorl", "flash_attention_4"), ("echorl", "block_attention"))
    spaces = [(getattr(torch.ops, space, None), name) for space, name in names]
    return [getattr(space, name).default for space, name in spaces if space is not None and hasattr(space, name)]


def _flash_attention_4() -> VarlenKernel | None:
    if torch.cuda.get_device_capability() < _HOPPER:
        return None
    try:
        operator = importlib.import_module("echorl_trainer.flash_attention_4").flash_attention_4
    except (ImportError, AttributeError):  # not installed, or a release with other functions
        return None

    def run(heads: Heads, cu: Tensor, longest: int, scoring: Scoring) -> Tensor:
        query, key, value = (part.contiguous() for part in heads)
        output: Tensor = operator(query, key, value, cu, longest, *scoring)[0]
        return output

    return VarlenKernel("FlashAttention 4", run)


def _torch() -> VarlenKernel | None:
    try:
        varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    parameters = inspect.signature(varlen_attn).parameters
    knows_windows, knows_gqa = "window_size" in parameters, "enable_gqa" in parameters

    def run(heads: Heads, cu: Tensor, longest: int, scoring: Scoring) -> Tensor:
        if scoring.softcap is not None or not (knows_windows or scoring.window is None):
            raise NotImplementedError(f"torch's kernel knows no {scoring}")
        grouped = heads[0].shape[1] != heads[1].shape[1]
        options: dict[str, Any] = {"window_size": _reach(scoring)} if knows_windows else {"is_causal": True}
        options |= {"enable_gqa": True} if grouped and knows_gqa else {}
        output: Tensor = varlen_attn(*heads, cu, cu, longest, longest, scale=scoring.scale, **options)
        return output

    return VarlenKernel("torch varlen_attn", run)


def _flash() -> VarlenKernel | None:
    try:
        flash = importlib.import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError):  # FlashAttention 4 alone puts a package of that name there, too
        return None

    def run(heads: Heads, cu: Tensor, longest: int, scoring: Scoring) -> Tensor:
        options: dict[str, Any] = {"softmax_scale": scoring.scale, "window_size": _reach(scoring)}
        options |= {} if scoring.softcap is None else {"softcap": scoring.softcap}  # since 2.6
        output: Tensor = flash(*heads, cu, cu, longest, longest, causal=True, **options)
        return output

    return VarlenKernel("flash-attn", run)


def _reach(scoring: Scoring) -> tuple[int, int]:
    """How far back and ahead a token sees, as torch and flash-attn say it."""
    return (-1 if scoring.window is None else scoring.window - 1, 0)
