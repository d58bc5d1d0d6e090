"""A decoder's dimensions, and how many parameters they make.

It is of decoders with gated feed-forward layers and grouped attention, as Llama's and Qwen's. Biases and the norms of
heads are left out: less than a thousandth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2
RESERVED_BYTES = int(1.5 * GIB)
"""Of CUDA, the kernels and the communicators."""
_LARGEST = 10**9
_KEYS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder, as its config.json names them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The shape that a config.json describes.

        Raises:
            ValueError: names the key that is missing or wrong, what was found and what is accepted.
        """
        if any(isinstance(config.get(key), int) and config[key] > 1 for key in _EXPERTS):
            raise ValueError("not supported yet: mixture of experts")
        numbers = {key: _number(config, key) for key in _KEYS}
        hidden, heads = numbers["hidden_size"], numbers["num_attention_heads"]
        return cls(
            **numbers,
            num_key_value_heads=_number(config, "num_key_value_heads", heads),
            head_dim=_number(config, "head_dim", max(1, hidden // heads)),
            tie_word_embeddings=config.get("tie_word_embeddings") is True,
        )

    @property
    def query_width(self) -> int:
        """Of all heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Of all key heads together, and of all value heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's matrices, by the names that adapters know them by."""
        hidden, inner, query, key = self.hidden_size, self.intermediate_size, self.query_width, self.key_width
        return {
            "q_proj": (hidden, query),
            "k_proj": (hidden, key),
            "v_proj": (hidden, key),
            "o_proj": (query, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices."""
        return sum(rows * columns for rows, columns in self.linear_layers.values())

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: its matrices and two norms."""
        return self.layer_matrices + 2 * self.hidden_size

    @property
    def outer_parameters(self) -> int:
        """Parameters of no layer: embedding, output head unless it is the embedding, last norm."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.num_hidden_layers * self.layer_parameters + self.outer_parameters


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        found = "nothing" if value is None else repr(value)[:40]
        raise ValueError(f"{key}: found {found}, accepted is a whole number from 1 to {_LARGEST:,}")
    return value
