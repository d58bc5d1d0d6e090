"""What torch makes dictionaries of weights and optimizer state from, remembered from one step to the next.

torch looks up every tensor's name again each time, which takes longer than to begin a copy of them. They stay the same
objects in the same places until something else is put there, and the next step writes into them.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.optim import Optimizer

from echorl_trainer.shards import local

TRAINED = StateDictOptions(ignore_frozen_params=True)
"""Where no adapter trains, nothing is frozen."""


class _Known(NamedTuple):
    """What was collected, and what tells that it still holds."""

    sources: list[Any]
    """Parameters, buffers, and keys and values of each parameter's optimizer state."""
    addresses: list[int]
    """Where the tensors among them lie."""
    model: dict[str, Any]
    optimizer: dict[str, Any]


class Collected:
    """The state dictionaries of a policy and its optimizer; their tensors are shared with both."""

    def __init__(self, policy: nn.Module, optimizer: Optimizer) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._known: _Known | None = None

    @torch.no_grad()
    def now(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those of the model and of the optimizer, with its groups' settings as they are now. Collective.

        The containers are used again; who changes what they hold copies them.
        """
        known = self._known
        if known is None or not _same(known, self._sources()):
            model, optimizer = get_state_dict(self._policy, self._optimizer, options=TRAINED)
            # After that, since it makes an optimizer's state where there is none, and gives up gathered weights.
            sources = self._sources()
            self._known = known = _Known(sources, _addresses(sources), model, optimizer)
        settings = [
            {**named, **{name: value for name, value in group.items() if name != "params"}}
            for named, group in zip(known.optimizer["param_groups"], self._optimizer.param_groups, strict=True)
        ]
        return known.model, {**known.optimizer, "param_groups": settings}

    def _sources(self) -> list[Any]:
        trained = [one for group in self._optimizer.param_groups for one in group["params"]]
        state = self._optimizer.state
        items = [each for one in trained if one in state for pair in state[one].items() for each in pair]
        return [*self._policy.parameters(), *self._policy.buffers(), *items]


def _same(known: _Known, sources: list[Any]) -> bool:
    # What is no tensor and changes, such as a count, is another object: then all is collected anew.
    return (
        len(sources) == len(known.sources)
        and all(one is other for one, other in zip(sources, known.sources, strict=True))
        and _addresses(sources) == known.addresses
    )


def _addresses(sources: list[Any]) -> list[int]:
    return [local(one).data_ptr() for one in sources if isinstance(one, torch.Tensor)]
