"""The arithmetic of ``ratios`` on CUDA in Triton: logits live in registers and are never written.

``_tiles`` multiplies, and turns a tile of logits into ratios and sums of them; ``_rows`` adds up a row. A tile
of a row that lies too far above the target is relative to its own largest logit instead, and ``_rows`` corrects such
rows in memory: they are rare, and nothing is multiplied twice for them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from echorl_trainer.head.chunk import Rows

FAR = 48.0
"""Binary orders above the target from which on a tile is relative to itself: sums, and factors per row, stay far from
float32's bounds."""
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)
"""The logit of what does not count; infinity would be no number times 0."""

_ROWS, _COLUMNS, _DEPTH = 128, 256, 64
_WARPS, _STAGES = 8, 3
_GROUP = 8
"""Tiles of rows that are taken before the next columns, so that both stay in the cache."""
_BLOCK = 4096
_ALIGNMENT = 16


def can_fold(hidden: Tensor, head: Tensor) -> bool:
    """Whether both are bfloat16, which has float32's bounds, and lie in memory as the hardware reads tiles."""
    return all(one.dtype == torch.bfloat16 and _is_aligned(one) for one in (hidden, head))


def _is_aligned(matrix: Tensor) -> bool:
    step = matrix.stride(0) * matrix.element_size()
    return matrix.stride(1) == 1 and step % _ALIGNMENT == 0 and matrix.data_ptr() % _ALIGNMENT == 0


def fold_on_device(rows: Rows, head: Tensor, kept: Tensor | None, columns: Tensor) -> None:
    """``ratios.fold_in_torch`` in three launches; waits for nothing."""
    count, (vocabulary, width) = len(rows), head.shape
    tiles = triton.cdiv(vocabulary, _COLUMNS)
    chosen = torch.empty_like(rows.temperature)
    partial = columns.new_empty(3, tiles, count)
    written = rows.hidden if kept is None else kept
    programs = torch.cuda.get_device_properties(head.device).multi_processor_count if head.is_cuda else 1
    _chosen[(count,)](
        rows.hidden,
        head,
        rows.targets,
        chosen,
        width,
        rows.hidden.stride(0),
        head.stride(0),
        BLOCK=triton.next_power_of_2(width),
    )
    _tiles[(min(programs, triton.cdiv(count, _ROWS) * tiles),)](
        TensorDescriptor.from_tensor(rows.hidden, [_ROWS, _DEPTH]),
        TensorDescriptor.from_tensor(head, [_COLUMNS, _DEPTH]),
        TensorDescriptor.from_tensor(written, [_ROWS, _COLUMNS]),
        rows.targets,
        rows.temperature,
        chosen,
        partial,
        count,
        vocabulary,
        width,
        FAR=FAR,
        KEEP=kept is not None,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        DEPTH=_DEPTH,
        GROUP=_GROUP,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    _rows[(count,)](
        partial,
        rows.targets,
        rows.temperature,
        chosen,
        written,
        columns,
        count,
        vocabulary,
        tiles,
        written.stride(0),
        columns.stride(0),
        KEEP=kept is not None,
        TILES=triton.next_power_of_2(tiles),
        COLUMNS=_COLUMNS,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocabulary)),
    )


@triton.jit
def _chosen(hidden, head, targets, chosen, width, hidden_stride, head_stride, BLOCK: tl.constexpr):
    """The target's logit, a program a row: what all others are relative to, without the tile units' rounding."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    left = tl.load(hidden + row * hidden_stride + place, mask=place < width, other=0.0).to(tl.float32)
    right = tl.load(head + tl.load(targets + row) * head_stride + place, mask=place < width, other=0.0).to(tl.float32)
    tl.store(chosen + row, tl.sum(left * right))


@triton.jit
def _tiles(
    hidden,
    head,
    kept,
    targets,
    temperature,
    chosen,
    partial,
    count,
    vocabulary,
    width,
    FAR: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program a multiprocessor, tile by tile; ``partial`` [3, tiles, R]: sums of e and of e log2 e, references."""
    row_tiles = tl.cdiv(count, ROWS)
    tiles = tl.cdiv(vocabulary, COLUMNS)
    for index in tl.range(tl.program_id(0), row_tiles * tiles, tl.num_programs(0), flatten=True):
        first = index // (GROUP * tiles) * GROUP
        beside = tl.minimum(row_tiles - first, GROUP)
        row_tile = first + index % (GROUP * tiles) % beside
        tile = index % (GROUP * tiles) // beside
        logits = tl.zeros([ROWS, COLUMNS], tl.float32)
        for depth in range(0, width, DEPTH):
            left = hidden.load([row_tile * ROWS, depth])
            right = head.load([tile * COLUMNS, depth])
            logits = tl.dot(left, right.T, logits)
        row = row_tile * ROWS + tl.arange(0, ROWS)
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        there = row < count
        target = tl.load(targets + row, mask=there, other=0).to(tl.int32)
        slope = LOG2_E / tl.load(temperature + row, mask=there, other=1.0)
        own = tl.load(chosen + row, mask=there, other=0.0)
        others = (column < vocabulary)[None, :] & (column[None, :] != target[:, None])
        logits = tl.where(others, logits, NOTHING)
        highest = tl.max(logits, 1)
        reference = tl.where((highest - own) * slope > FAR, highest, own)
        distance = logits * slope[:, None] - (reference * slope)[:, None]
        ratio = tl.exp2(distance)
        place = partial + tile * count + row
        tl.store(place, tl.sum(ratio, 1), mask=there)
        tl.store(place + tiles * count, tl.sum(ratio * distance, 1), mask=there)
        tl.store(place + 2 * tiles * count, reference, mask=there)
        if KEEP:
            kept.store([row_tile * ROWS, tile * COLUMNS], ratio.to(kept.dtype))


@triton.jit
def _rows(
    partial,
    targets,
    temperature,
    chosen,
    kept,
    columns,
    count,
    vocabulary,
    tiles,
    kept_stride,
    columns_stride,
    KEEP: tl.constexpr,
    TILES: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row: its statistics, and the target's entry. Logarithms are binary until they are written."""
    row = tl.program_id(0)
    inverse = 1.0 / tl.load(temperature + row)
    slope = LOG2_E * inverse
    own = tl.load(chosen + row)
    tile = tl.arange(0, TILES)
    there = tile < tiles
    place = partial + tile * count + row
    ratios = tl.load(place, mask=there, other=0.0)
    weighted = tl.load(place + tiles * count, mask=there, other=0.0)
    references = partial + 2 * tiles * count + row
    relative_to = tl.load(references + tile * count, mask=there, other=-float("inf"))
    reference = tl.max(relative_to)
    shift = tl.where(there, (relative_to - reference) * slope, 0.0)
    others = tl.sum(tl.exp2(shift) * ratios)
    distance = (own - reference) * slope
    mine = tl.exp2(distance)
    total = mine + others
    logs = tl.sum(tl.exp2(shift) * (weighted + ratios * shift)) + tl.where(mine > 0, mine * distance, 0.0)
    tl.store(columns + row, distance / LOG2_E - tl.log(total))
    tl.store(columns + columns_stride + row, tl.log(total) - logs / (total * LOG2_E))
    tl.store(columns + 2 * columns_stride + row, -inverse / total)
    if KEEP:
        kept += row.to(tl.int64) * kept_stride
        if reference > own:
            for begin in range(0, vocabulary, BLOCK):
                column = begin + tl.arange(0, BLOCK)
                inside = column < vocabulary
                from_tile = tl.load(references + column // COLUMNS * count, mask=inside, other=0.0)
                ratio = tl.load(kept + column, mask=inside, other=0.0).to(tl.float32)
                ratio *= tl.exp2((from_tile - reference) * slope)
                tl.store(kept + column, ratio.to(kept.dtype.element_ty), mask=inside)
            tl.debug_barrier()  # other threads have written at the target
        tl.store(kept + tl.load(targets + row), (-others).to(kept.dtype.element_ty))
