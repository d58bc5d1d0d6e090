"""What the optimizers written here share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class GroupOptimizer(Optimizer):
    """An optimizer that is written as the update of one parameter group."""

    @abstractmethod
    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``parameters``: those of ``group`` that have a gradient. Gradients are not recorded."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.update([parameter for parameter in group["params"] if parameter.grad is not None], group)
        return loss
