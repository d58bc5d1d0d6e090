"""A policy's parameters on their way into a snapshot: gathered, packed, copied beside the next step.

    parameters --pack--> device --side stream--> snapshot

What the copy reads is a packed copy that no optimizer touches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from echorl_trainer.host_files import FileLayout, views
from echorl_trainer.shards import Portion
from echorl_trainer.snapshots import Snapshot

_IN_FLIGHT = 2
"""Packed files on the device at once, beyond which the loop waits for the copy of the first."""


@dataclass(frozen=True)
class Arrival:
    """What is on its way to host memory."""

    values: Sequence[Tensor]
    done: torch.cuda.Event | None
    """None: it is there."""

    def wait(self) -> Sequence[Tensor]:
        """The values, once they and all that was copied before them are there."""
        if self.done is not None:
            self.done.synchronize()
        return self.values


class Copier:
    """Copies a policy's parameters into snapshots; every rank holds one."""

    def __init__(self, layouts: Sequence[FileLayout], device: torch.device) -> None:
        self._layouts = layouts
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def copy(self, parameters: Mapping[str, Tensor | Portion], snapshot: Snapshot | None) -> Tensor:
        """Walk all parameters, named as in the layouts; collective, since each is gathered.

        ``snapshot``: has this rank's files, all or some of those of the layouts; None: it has none.

        When it returns the parameters may change; ``arrival`` says when the snapshot has them.

        Returns:
            Least and largest value of each of these files, float32 [files, 2] on the device, NaN where one is.
        """
        bounds: list[Tensor] = []
        under_way: list[torch.cuda.Event] = []
        wanted = ((parameters[name], layout.dtype) for layout in self._layouts for name in layout.shapes)
        everything = _all_gathered(wanted)
        own = {} if snapshot is None else {file.layout.name: file.data for file in snapshot.files}
        for layout in self._layouts:
            whole = islice(everything, len(layout.shapes))
            data = own.get(layout.name)
            if data is None:
                for _ in whole:
                    pass
                continue
            if self._side is None:
                _fill(views(data, layout), whole)
                bounds.append(_bounds(data))
                continue
            if len(under_way) >= _IN_FLIGHT:
                under_way[-_IN_FLIGHT].synchronize()
            packed = torch.empty(len(data), dtype=layout.dtype, device=self._side.device)
            _fill(views(packed, layout), whole)
            bounds.append(_bounds(packed))
            self._follow()
            with torch.cuda.stream(self._side):
                data.copy_(packed, non_blocking=True)
                packed.record_stream(self._side)
                under_way.append(self._side.record_event())
        return torch.stack(bounds) if bounds else torch.empty(0, 2)

    def arrival(self, *values: Tensor) -> Arrival:
        """Bring a few values to the host, after all that ``copy`` sent there."""
        if self._side is None:
            return Arrival(values, None)
        self._follow()
        with torch.cuda.stream(self._side):
            hosts = [torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in values]
            for host, value in zip(hosts, values, strict=True):
                host.copy_(value, non_blocking=True)
                value.record_stream(self._side)
            return Arrival(hosts, self._side.record_event())

    def _follow(self) -> None:
        assert self._side is not None  # noqa: S101 - asked on CUDA alone
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))


def gathered(parameter: Tensor | Portion, dtype: torch.dtype) -> Tensor:
    """The whole of a parameter on its device; collective, and in ``dtype`` if ranks exchange anything for it."""
    if isinstance(parameter, Portion):
        return parameter.of(gathered(parameter.stack, dtype))
    if not isinstance(parameter, DTensor):
        return parameter
    if parameter.device_mesh.size() == 1:
        return parameter.to_local()
    local = parameter.to(dtype)
    whole: Tensor = local.full_tensor() if isinstance(local, DTensor) else local
    return whole


def _all_gathered(wanted: Iterable[tuple[Tensor | Portion, torch.dtype]]) -> Iterator[Tensor]:
    """The whole of each; a stack is gathered once for portions of it that stand together."""
    stack, whole = None, torch.empty(0)
    for one, dtype in wanted:
        if not isinstance(one, Portion):
            stack, whole = None, torch.empty(0)
            yield gathered(one, dtype)
            continue
        if stack is not one.stack:
            stack, whole = one.stack, gathered(one.stack, dtype)
        yield one.of(whole)


def _fill(targets: Sequence[Tensor], whole: Iterator[Tensor]) -> None:
    for target, tensor in zip(targets, whole, strict=True):
        target.copy_(tensor)


def _bounds(data: Tensor) -> Tensor:
    return torch.stack(torch.aminmax(data)).float()
