"""The weights before the last update, kept now and then to score tokens under the version that sampled them.

Where engines sample ahead, every token is a version old when it is trained, and the gap between engine and trainer
would never be measured on the trainer's own version.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from echorl_trainer.model import Policy

EVERY = 10
"""Steps from one comparison to the next; the first is in step 2."""


class FormerWeights:
    """One rank's shards of the version before, in the precision that the model computes in."""

    def __init__(self, policy: Policy, *, every: int = EVERY) -> None:
        self._policy, self._every = policy, every
        self._kept: list[Tensor] = []
        self._version: int | None = None

    def keep(self, step: int) -> None:
        """Before the update of ``step``: keep version ``step - 1`` if it is to be compared, and no other."""
        due = step % self._every == 1
        self._version = step - 1 if due else None
        self._kept = [part.to(self._policy.compute_dtype, copy=True) for part in self._shards()] if due else []

    def holds(self, version: int) -> bool:
        """Whether this is the version that is kept; on all ranks alike."""
        return self._version == version

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The policy computes with what was kept, which is then forgotten; collective, without gradients."""
        current = [part.clone() for part in self._shards()]
        if current and current[0].is_cuda:
            torch.cuda.synchronize(current[0].device)  # a checkpoint may still be copied from the weights, elsewhere
        try:
            _copy(self._kept, self._shards())
            with torch.no_grad():
                yield
        finally:
            if isinstance(self._policy, FSDPModule):
                self._policy.reshard()  # without a backward the root would keep what it gathered
            _copy(current, self._shards())  # not the tensors of before: gathering may have let them go
            self._kept, self._version = [], None

    def _shards(self) -> list[Tensor]:
        trained = [parameter.detach() for parameter in self._policy.parameters() if parameter.requires_grad]
        return [part.to_local() if isinstance(part, DTensor) else part for part in trained]


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    with torch.no_grad():
        for value, part in zip(source, target, strict=True):
            part.copy_(value)
