"""Products of rows with one of several matrices each, as experts have them, and their gradients.

Rows stand in the order of the matrices, or are read from where their tokens stand. Which kernel multiplies:

quack               in half precision on a Hopper, where the package ``quack-kernels`` is installed and passes a trial
torch grouped_mm    else, on CPUs too

Both are behind operators of our own, which the compiler passes over and checkpointing by products keeps.
"""

import importlib
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import structlog
import torch
from torch import Tensor
from torch.nn import functional

_HOPPER = 9
_HALF = (torch.bfloat16, torch.float16)
_ERROR = 0.02
"""Of a trial's results in half precision, relative."""

log = structlog.get_logger()


class _Kernels(Protocol):
    """A module such as ``quack_products``."""

    def product(self, rows: Tensor, matrices: Tensor, bounds: Tensor, source: Tensor | None, into: Tensor) -> None: ...

    def outer(self, rows: Tensor, others: Tensor, bounds: Tensor, source: Tensor | None, into: Tensor) -> None: ...


_kernels: _Kernels | None = None
"""What ``choose_products`` chose; None: torch's."""


class Groups(NamedTuple):
    """Where rows [T k], k of each of T tokens, stand in the order of E experts."""

    bounds: Tensor
    """int32 [E + 1]: expert e has the rows ``bounds[e]:bounds[e + 1]``."""
    source: Tensor
    """int32 [T k], the token of each row."""
    inverse: Tensor
    """int64 [T k]: token t's rows are ``inverse[t k : (t + 1) k]``."""


@torch.library.custom_op("echorl::grouped_product", mutates_args=())
def grouped_product(rows: Tensor, matrices: Tensor, bounds: Tensor, source: Tensor | None) -> Tensor:
    """Rows times the matrix of their group.

    Args:
        rows: [R, K], contiguous.
        matrices: [E, K, M].
        bounds: int32 [E + 1]: group e is rows ``bounds[e]:bounds[e + 1]``.
        source: int32 [N], where in ``rows`` each of the N grouped rows stands; None: there are N, and in order.

    Returns:
        [N, M].
    """
    kernels = _kernels_for(rows)
    some = len(rows if source is None else source) > 0
    if some and kernels is None:
        return _grouped_mm(_taken(rows, source), matrices, bounds)
    into: Tensor = _product_shaped(rows, matrices, bounds, source)
    if some and kernels is not None:
        kernels.product(rows, matrices, bounds, source, into)
    return into


# Sizes by ``shape``: by ``len`` the compiler would take them for constants.
@grouped_product.register_fake
def _product_shaped(rows: Tensor, matrices: Tensor, _bounds: Tensor, source: Tensor | None) -> Tensor:
    return rows.new_empty(((rows if source is None else source).shape[0], matrices.shape[2]))


@torch.library.custom_op("echorl::grouped_outer", mutates_args=())
def grouped_outer(rows: Tensor, others: Tensor, bounds: Tensor, source: Tensor | None, *, swapped: bool) -> Tensor:
    """Sums over a group's rows of their outer products: the gradient of the group's matrix; 0 of a group of none.

    Args:
        rows: [R, P], contiguous.
        others: [N, Q], contiguous, in order.
        bounds: as of ``grouped_product``.
        source: as of ``grouped_product``, of ``rows``.
        swapped: the result is [E, Q, P].

    Returns:
        [E, P, Q], contiguous.
    """
    kernels = _kernels_for(rows)
    if len(others) and kernels is None:
        pair = (_taken(rows, source), others)
        left, right = pair[::-1] if swapped else pair
        return _grouped_mm(left.mT, right, bounds)
    into: Tensor = _outer_shaped(rows, others, bounds, source, swapped=swapped)
    if not len(others):
        into.zero_()
    elif kernels is not None:
        kernels.outer(rows, others, bounds, source, into.mT if swapped else into)
    return into


@grouped_outer.register_fake
def _outer_shaped(rows: Tensor, others: Tensor, bounds: Tensor, _source: Tensor | None, *, swapped: bool) -> Tensor:
    sizes = (rows.shape[1], others.shape[1])
    return rows.new_empty((bounds.shape[0] - 1, *(sizes[::-1] if swapped else sizes)))


def _kernels_for(rows: Tensor) -> _Kernels | None:
    """What multiplies such rows; None: torch."""
    return _kernels if rows.dtype in _HALF else None


def _grouped_mm(left: Tensor, right: Tensor, bounds: Tensor) -> Tensor:
    found: Tensor = functional.grouped_mm(left, right, offs=bounds[1:])
    return found


def _taken(rows: Tensor, source: Tensor | None) -> Tensor:
    return rows if source is None else rows[source]


def _located(rows: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows for several products, and where in them: gathered once where a product gathers none by itself."""
    rows = rows.contiguous()
    return (rows, source) if _kernels_for(rows) is not None else (_taken(rows, source), None)


def added_up(rows: Tensor, inverse: Tensor, tokens: int) -> Tensor:
    """Sums [T, H], in float32, of grouped rows [T k, H] over the k of each token, which stand at ``inverse`` [T k]."""
    # One by one: as a reduction of what was gathered, the compiler's kernel takes several times as long.
    first, *others = inverse.view(tokens, -1).unbind(dim=1)
    total: Tensor = rows[first].float()
    for places in others:
        total = total + rows[places]
    # Of a conversion to what it is, torch 2.11's compiler makes a result without a gradient.
    return total if total.dtype == rows.dtype else total.to(rows.dtype)


def _operands(ctx: Any, rows: Tensor, stack: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What the gradients that are wanted need: each operand's that of the other."""
    of_rows, of_stack, *_ = ctx.needs_input_grad
    return (rows if of_stack else None, stack if of_rows else None)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd has no keywords
        ctx: Any, tokens: Tensor, stack: Tensor, bounds: Tensor, source: Tensor | None, inverse: Tensor | None
    ) -> Tensor:
        rows, places = _located(tokens, source)
        ctx.save_for_backward(*_operands(ctx, rows, stack), bounds, places, inverse)
        ctx.tokens = tokens.shape[0]
        made: Tensor = grouped_product(rows, stack.mT, bounds, places)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, stack, bounds, places, inverse = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_tokens = of_stack = None
        if ctx.needs_input_grad[0]:
            of_tokens = grouped_product(gradient, stack, bounds, None)
            if inverse is not None:
                of_tokens = added_up(of_tokens, inverse, ctx.tokens)
        if ctx.needs_input_grad[1]:
            of_stack = grouped_outer(rows, gradient, bounds, places, swapped=True)
        return of_tokens, of_stack, None, None, None


class _LinearAddedUp(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd has no keywords
        ctx: Any, rows: Tensor, stack: Tensor, bounds: Tensor, source: Tensor, inverse: Tensor, tokens: int
    ) -> Tensor:
        ctx.save_for_backward(*_operands(ctx, rows, stack), bounds, source)
        return added_up(grouped_product(rows, stack.mT, bounds, None), inverse, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, stack, bounds, source = ctx.saved_tensors
        gradient, places = _located(gradients[0], source)
        of_rows = grouped_product(gradient, stack, bounds, places) if ctx.needs_input_grad[0] else None
        of_stack = None
        if ctx.needs_input_grad[1]:
            of_stack = grouped_outer(gradient, rows, bounds, places, swapped=False)
        return of_rows, of_stack, None, None, None, None


def linear(rows: Tensor, stack: Tensor, bounds: Tensor) -> Tensor:
    """Rows [N, I] in the order of experts through their matrices [E, O, I]; gives [N, O]."""
    found: Tensor = _Linear.apply(rows, stack, bounds, None, None)  # type: ignore[no-untyped-call]
    return found


def linear_to_experts(tokens: Tensor, stack: Tensor, groups: Groups) -> Tensor:
    """Tokens [T, I] through the matrices [E, O, I] of each of their experts; gives [T k, O]."""
    found: Tensor = _Linear.apply(tokens, stack, *groups)  # type: ignore[no-untyped-call]
    return found


def linear_from_experts(rows: Tensor, stack: Tensor, groups: Groups, tokens: int) -> Tensor:
    """Rows [T k, I], contiguous, through their experts' matrices [E, O, I], added up in float32.

    Returns:
        [T, O], of each of T ``tokens`` what its k experts make of it, in the dtype of ``rows``.
    """
    found: Tensor = _LinearAddedUp.apply(rows, stack, *groups, tokens)  # type: ignore[no-untyped-call]
    return found


def choose_products(device: torch.device, dtype: torch.dtype) -> None:
    """Use, from now on, the fastest kernels that are made for this device, are installed and pass a trial."""
    global _kernels  # noqa: PLW0603 - one model is trained in a process
    _kernels = None
    if device.type == "cuda" and dtype in _HALF and torch.cuda.get_device_capability(device)[0] == _HOPPER:
        try_quack(device, dtype)


def try_quack(device: torch.device, dtype: torch.dtype) -> None:
    """Use quack's kernels if they are installed and do what torch's do, for which they are compiled.

    Raises:
        RuntimeError: torch's products fail.
    """
    global _kernels  # noqa: PLW0603 - as above
    _kernels = None
    if find_spec("quack") is None:
        return
    expected = _trial(device, dtype)
    try:
        _kernels = importlib.import_module("echorl_trainer.quack_products")
        for one, other in zip(_trial(device, dtype), expected, strict=True):
            error = float((one - other).float().norm() / other.float().norm())
            if not error <= _ERROR:
                raise ArithmeticError(f"a trial's results are wrong by {error:.2g} of them")
    except Exception as error:  # another release can lack what is used, or take other arguments
        _kernels = None
        log.warning("kernels of quack do not work here, torch's are used", error=str(error))


def products_name() -> str:
    """What ``choose_products`` chose, for people."""
    return "torch grouped_mm" if _kernels is None else "quack"


@torch.enable_grad()
def _trial(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """What six tokens and their gradients come to by three experts, of which the second has none."""
    generator = torch.Generator().manual_seed(0)
    tokens, up, down = (
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in ((6, 64), (3, 32, 64), (3, 64, 32))
    )
    source = torch.tensor([0, 2, 3, 5, 1, 0, 2, 3, 4, 1, 4, 5], device=device, dtype=torch.int32)
    bounds = torch.tensor([0, 5, 5, 12], device=device, dtype=torch.int32)
    groups = Groups(bounds, source, torch.argsort(source, stable=True))
    made = linear_from_experts(linear_to_experts(tokens, up, groups), down, groups, 6)
    made = made + linear(tokens, up, bounds // 2)[:, :1]
    return [made.detach(), *torch.autograd.grad(made.float().square().sum(), (tokens, up, down))]
