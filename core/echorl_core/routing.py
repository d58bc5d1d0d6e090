"""Which experts of a mixture tokens went to, as engines tell it and trainers replay it (ADR 44)."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echorl_core.model_folder import number_of_config

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What a config.json calls the number of a layer's experts."""
_BYTE = 256
"""Up to so many experts, one takes a byte."""

Choices = NDArray[np.unsignedinteger]
"""Numbers of experts, uint8 or uint16."""


@dataclass(frozen=True)
class RouterShape:
    """What the routers of a mixture have to choose from."""

    layers: int
    """Layers with experts."""
    dense_layers: int
    """Layers before them that have none."""
    experts: int
    """Of each layer."""
    top_k: int
    """Experts of a token."""

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """What an expert's number is told in."""
        return np.dtype(np.uint8) if self.experts <= _BYTE else np.dtype(np.uint16)

    def offence(self, choices: NDArray[np.integer]) -> str | None:
        """Say what of ``choices`` [n, layers, top_k], numbers of experts, no router can have chosen; None: nothing."""
        if choices.shape[1:] != (self.layers, self.top_k):
            return f"found experts of shape {choices.shape}, accepted is (tokens, {self.layers}, {self.top_k})"
        extremes = (int(choices.min()), int(choices.max())) if choices.size else ()
        if beyond := [one for one in extremes if not 0 <= one < self.experts]:
            return f"found expert {beyond[0]}, accepted are 0 to {self.experts - 1}"
        # Columns beside each other in memory: a comparison of two takes microseconds, sorting every row a thousand.
        columns = np.ascontiguousarray(choices.reshape(-1, self.top_k).T)
        if any((first == second).any() for first, second in combinations(columns, 2)):
            return f"found an expert twice among a token's {self.top_k}, accepted is each once"
        return None


def expert_count(folder: Path) -> int:
    """How many experts a layer of the model in ``folder`` has; 0: it is no mixture, or does not say."""
    return next(filter(None, (number_of_config(folder, name) for name in _EXPERTS)), 0)


def router_shape(folder: Path) -> RouterShape | None:
    """The routers of the model in ``folder``; None: it is no mixture, or does not say all of it."""
    experts, top_k = expert_count(folder), number_of_config(folder, "num_experts_per_tok")
    layers = number_of_config(folder, "num_hidden_layers")
    if not experts or not top_k or not layers:
        return None
    dense = number_of_config(folder, "first_k_dense_replace") or 0
    return RouterShape(layers - dense, dense, experts, top_k)
