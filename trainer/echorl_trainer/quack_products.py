"""Grouped products by kernels of the package ``quack-kernels``, made for Hopper; rows are read where they stand.

As gathering is part of a product, no copy of a token for each of its experts is written, read again or kept. Importing
this fails where the package is a release without these functions.
"""

from quack.gemm import _gemm_plan_cache as _plans
from quack.gemm_config import GemmConfig
from quack.gemm_interface import gemm_tuned
from torch import Tensor

_MOST_PLANS = 4096
"""Plans of launches that quack keeps, 2 KB each: one for every number of rows, of which it drops none itself."""


def _config(tile_n: int, *, pingpong: bool) -> GemmConfig:
    return GemmConfig(
        tile_m=128, tile_n=tile_n, pingpong=pingpong, cluster_m=2, is_dynamic_persistent=False, device_capacity=9
    )


# The fastest of five tiles on an H100 for matrices of 768 by 2,048 and 1,536 by 2,048.
_IN_ORDER, _GATHERED = _config(192, pingpong=True), _config(256, pingpong=False)


def _run(rows: Tensor, others: Tensor, into: Tensor, source: Tensor | None, **bounds: Tensor) -> None:
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    gemm_tuned.fn(rows, others, into, A_idx=source, config=_IN_ORDER if source is None else _GATHERED, **bounds)


def product(rows: Tensor, matrices: Tensor, bounds: Tensor, source: Tensor | None, into: Tensor) -> None:
    """``grouped_products.grouped_product``, written into ``into``."""
    _run(rows, matrices, into, source, cu_seqlens_m=bounds)


def outer(rows: Tensor, others: Tensor, bounds: Tensor, source: Tensor | None, into: Tensor) -> None:
    """``grouped_products.grouped_outer``, written into ``into``, which may be a transposed view."""
    _run(rows.mT, others, into, source, cu_seqlens_k=bounds)
