"""What torch makes dictionaries of weights and optimizer state from, remembered from one step to the next.

torch looks up every tensor's name again each time, which takes longer than to begin a copy of them. They stay the same
objects in the same places until something else is put there, and the next step writes into them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

TRAINED = StateDictOptions(ignore_frozen_params=True)
"""Where no adapter trains, nothing is frozen."""


class Settled(dict[str, Any]):
    """As long as it is the same object, it holds the same tensors, and they lie where they lay."""


class _Source(NamedTuple):
    """What lies in a place that was collected from: of a module, of an optimizer, of its state."""

    container: dict[Any, Any]
    key: Any
    value: Any
    part: Tensor | None
    """This rank's, of a tensor."""
    address: int


class _Known(NamedTuple):
    """What was collected, and what tells that it still holds."""

    state: dict[Any, Any]
    """The optimizer's, another one where one was loaded."""
    sources: list[_Source]
    sizes: list[tuple[dict[Any, Any], int]]
    """Of all containers, in which nothing was added."""
    model: Settled
    optimizer: dict[str, Any]

    def holds(self, optimizer: Optimizer) -> bool:
        """Whether everything is as it was. What is no tensor and changes, such as a count, is another object."""
        if optimizer.state is not self.state:
            return False
        return all(len(container) == size for container, size in self.sizes) and all(
            container.get(key) is value and (part is None or (_part(value) is part and part.data_ptr() == address))
            for container, key, value, part, address in self.sources
        )


class Collected:
    """The state dictionaries of a policy and its optimizer; their tensors are shared with both."""

    def __init__(self, policy: nn.Module, optimizer: Optimizer) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._known: _Known | None = None

    @torch.no_grad()
    def now(self) -> tuple[Settled, dict[str, Any]]:
        """Those of the model and of the optimizer, with its groups' settings as they are now. Collective.

        The containers are used again; who changes what they hold copies them.
        """
        known = self._known
        if known is None or not known.holds(self._optimizer):
            self._known = known = self._collect()
        settings = [
            {**named, **{name: value for name, value in group.items() if name != "params"}}
            for named, group in zip(known.optimizer["param_groups"], self._optimizer.param_groups, strict=True)
        ]
        return known.model, {**known.optimizer, "param_groups": settings}

    def _collect(self) -> _Known:
        model, optimizer = get_state_dict(self._policy, self._optimizer, options=TRAINED)
        optimizer = {**optimizer, "state": Settled(cast(dict[str, Any], optimizer["state"]))}
        # After that, since it makes an optimizer's state where there is none, and gives up gathered weights.
        containers = list(self._containers())
        sources = [_source(container, key) for container in containers for key in container]
        sizes = [(one, len(one)) for one in containers]
        return _Known(self._optimizer.state, sources, sizes, Settled(model), optimizer)

    def _containers(self) -> Iterator[dict[Any, Any]]:
        for module in self._policy.modules():
            yield from (module._modules, module._parameters, module._buffers)
        yield from (self._optimizer.state, *self._optimizer.state.values())


def _source(container: dict[Any, Any], key: Any) -> _Source:
    value = container[key]
    part = _part(value) if isinstance(value, Tensor) else None
    return _Source(container, key, value, part, 0 if part is None else part.data_ptr())


def _part(value: Any) -> Tensor:
    # Not to_local, which makes another object of a parameter's every time.
    found: Tensor = value._local_tensor if isinstance(value, DTensor) else value
    return found
