"""How an optimizer keeps its moments between steps: in which precision, and where.

A step computes in float32 on the parameter's device. Between steps a moment of a matrix is float32, bfloat16, or 8-bit
codes with a scale per block, in the device's memory or in the host's; of anything smaller it is float32. It is sharded
as its parameter is, block scales too, so a checkpoint is read back at any number of ranks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from echorl_trainer.eight_bit import BLOCK, decode, encode
from echorl_trainer.shards import local

StateDtype = Literal["float32", "bfloat16", "int8"]
Piece = tuple[Tensor, slice]
"""Some of this rank's rows of a parameter."""

_AT_ONCE = 2**24
"""Elements whose moments are float32 on the device at once, where they are kept otherwise."""
_SCALE = "_scale"


class MomentStore:
    """Keeps moments in an optimizer's state: ``name``, and ``name_scale`` beside 8-bit codes."""

    def __init__(self, dtype: StateDtype = "float32", *, offload: bool = False) -> None:
        """``offload``: to host memory, pinned where the parameter is on a GPU."""
        self._dtype, self._offload = dtype, offload

    @property
    def is_plain(self) -> bool:
        """Whether moments are kept as they are computed."""
        return self._dtype == "float32" and not self._offload

    @torch.no_grad()
    def begin(self, state: dict[str, Any], name: str, parameter: Tensor) -> None:
        """Put a moment of zeros into ``state``."""
        if self._dtype == "float32" or parameter.ndim < 2:
            state[name] = self._zeros(parameter, torch.float32)
        elif self._dtype == "bfloat16":
            state[name] = self._zeros(parameter, torch.bfloat16)
        else:
            state[name] = self._zeros(parameter, torch.uint8)
            state[f"{name}{_SCALE}"] = self._zeros(parameter.detach()[..., ::BLOCK], torch.float32)

    def _zeros(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        zeros = torch.zeros_like(like.detach(), dtype=dtype, device="cpu" if self._offload else None)
        if self._offload and like.is_cuda and isinstance(zeros, DTensor):
            zeros._local_tensor = zeros._local_tensor.pin_memory()
        return zeros

    def read(self, state: dict[str, Any], name: str, rows: slice, device: torch.device, *, signed: bool) -> Tensor:
        """Some of this rank's rows of a moment as float32 on ``device``: what is kept itself, where it is that."""
        kept = local(state[name])[rows].to(device, non_blocking=True)
        if kept.dtype != torch.uint8:
            return kept.float()
        scales = local(state[f"{name}{_SCALE}"])[rows].to(device, non_blocking=True)
        return decode(kept, scales, signed=signed)

    def write(self, state: dict[str, Any], name: str, rows: slice, values: Tensor, *, signed: bool) -> None:
        """Keep ``values``, which came from ``read`` and have been changed since."""
        kept = local(state[name])[rows]
        if kept.dtype == torch.uint8:
            codes, scales = encode(values, signed=signed)
            kept.copy_(codes, non_blocking=True)
            local(state[f"{name}{_SCALE}"])[rows].copy_(scales, non_blocking=True)
        elif kept.data_ptr() != values.data_ptr():
            # Rounded where it was computed: on its way to the host, a copy that also rounds would not be waited for.
            kept.copy_(values.to(kept.dtype), non_blocking=True)

    def pieces(self, parameters: Sequence[Tensor]) -> Iterator[list[Piece]]:
        """All rows of ``parameters``, as many at once as the store has room for on the device."""
        some: list[Piece] = []
        room = _AT_ONCE
        for parameter in parameters:
            part = local(parameter)
            size = part[:1].numel()
            step = len(part) if self.is_plain else max(1, _AT_ONCE // max(1, size))
            for begin in range(0, len(part), max(1, step)):
                rows = slice(begin, min(begin + step, len(part)))
                taken = (rows.stop - rows.start) * size
                if some and taken > room and not self.is_plain:
                    yield some
                    some, room = [], _AT_ONCE
                some.append((parameter, rows))
                room -= taken
        if some:
            yield some

    def settle(self, device: torch.device) -> None:
        """Return when what was written is in host memory, where it is kept there: others read it without the GPU."""
        if self._offload and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
