"""A decoder's dimensions, and how many parameters they make.

It is of decoders with gated feed-forward layers and grouped attention, as Llama's, Qwen's and Gemma's, and of mixtures
of experts as Qwen3-MoE's and GLM-4.5's, whose first layers may have none, and whose others may have experts that all
tokens share. Biases, norms of heads and norms beyond two a layer are left out: less than a thousandth. So are layers
that predict further tokens (``num_nextn_predict_layers``), which are neither trained nor served.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2
RESERVED_BYTES = int(1.5 * GIB)
"""Of CUDA, the kernels and the communicators."""
_LARGEST = 10**9
_KEYS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SHARED_AND_DENSE = {"qwen3_moe": 0, "glm4_moe": 1}
"""Families of mixtures, and how many shared experts and first layers without experts they have by default."""
_FAMILY = "qwen3_moe"
"""Of numbers that name none."""
_WINDOWS_ASKED_FOR = ("qwen2", "qwen3")
"""Families whose configs name a window that is only used where ``use_sliding_window`` says so."""


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
    num_experts: int = 1
    """1: there are no experts and no router."""
    num_experts_per_tok: int = 1
    moe_intermediate_size: int = 0
    """Of one expert; ``intermediate_size`` is that of layers without experts then."""
    n_shared_experts: int = 0
    """Experts that every token goes through."""
    first_k_dense_replace: int = 0
    """First layers of a mixture that have no experts."""
    windows: tuple[int, ...] = ()
    """Tokens that each layer with a sliding window sees; others see all."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The shape that a config.json describes.

        Raises:
            ValueError: names the key that is missing or wrong, what was found and what is accepted.
        """
        numbers = {key: _number(config, key) for key in _KEYS} | _experts(config)
        hidden, heads = numbers["hidden_size"], numbers["num_attention_heads"]
        return cls(
            **numbers,
            num_key_value_heads=_number(config, "num_key_value_heads", heads),
            head_dim=_number(config, "head_dim", max(1, hidden // heads)),
            tie_word_embeddings=config.get("tie_word_embeddings", _is_gemma(config)) is True,
            windows=_windows(config, numbers["num_hidden_layers"]),
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
    def has_experts(self) -> bool:
        """Whether a router chooses for every token which of several feed-forward parts it goes through."""
        return self.num_experts > 1

    @property
    def inner_width(self) -> int:
        """Of the feed-forward part that one token goes through: of all experts that it takes together."""
        taken = self.num_experts_per_tok + self.n_shared_experts
        return taken * self.moe_intermediate_size if self.has_experts else self.intermediate_size

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return max(0, self.num_hidden_layers - self.first_k_dense_replace) if self.has_experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers without."""
        return self.num_hidden_layers - self.expert_layers

    @property
    def dense(self) -> "ModelShape":
        """The shape whose layers are all as those without experts."""
        return replace(self, num_experts=1, num_experts_per_tok=1, moe_intermediate_size=0, n_shared_experts=0)

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's matrices, by the names that adapters know them by; experts get none."""
        hidden, inner, query, key = self.hidden_size, self.intermediate_size, self.query_width, self.key_width
        found = {"q_proj": (hidden, query), "k_proj": (hidden, key), "v_proj": (hidden, key), "o_proj": (query, hidden)}
        if not self.has_experts:
            found |= {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
        return found

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices; of a mixture of a layer with experts."""
        router = self.num_experts * self.hidden_size if self.has_experts else 0
        shared = self.n_shared_experts * self._expert
        return _size(self.linear_layers.values()) + router + shared + self.layer_experts

    @property
    def _expert(self) -> int:
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def layer_experts(self) -> int:
        """Parameters of a layer's experts that a router chooses from."""
        return self.num_experts * self._expert

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: its matrices and two norms."""
        return self.layer_matrices + 2 * self.hidden_size

    @property
    def active_parameters(self) -> int:
        """Of the whole model, those that one token is computed with."""
        return self.parameters - self.expert_layers * (self.num_experts - self.num_experts_per_tok) * self._expert

    @property
    def outer_parameters(self) -> int:
        """Parameters of no layer: embedding, output head unless it is the embedding, last norm."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        every = self.num_hidden_layers * self.layer_parameters + self.outer_parameters
        if not self.has_experts:
            return every
        return every - self.dense_layers * (self.layer_parameters - self.dense.layer_parameters)

    @property
    def products(self) -> tuple[int, int]:
        """Parameters of what all layers multiply by, routers apart, and how many values it gives."""
        attention, whole = self.linear_layers.values(), self.dense.linear_layers.values()
        experts, inner = self.num_experts + self.n_shared_experts, self.moe_intermediate_size
        mixed = (
            _size(attention) + experts * self._expert,
            _outputs(attention) + experts * (2 * inner + self.hidden_size),
        )
        dense = (_size(whole), _outputs(whole))
        first, second = (
            self.expert_layers * one + self.dense_layers * other for one, other in zip(mixed, dense, strict=True)
        )
        return first, second


def _size(layers: Iterable[tuple[int, int]]) -> int:
    return sum(inputs * outputs for inputs, outputs in layers)


def _outputs(layers: Iterable[tuple[int, int]]) -> int:
    return sum(outputs for _, outputs in layers)


def _experts(config: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a mixture of experts; of a dense model none.

    Raises:
        ValueError: it is of another family, or a number is missing or wrong.
    """
    found = [key for key in _EXPERTS if isinstance(config.get(key), int) and config[key] > 1]
    if not found:
        return {}
    family = config.get("model_type", _FAMILY)
    if family not in _SHARED_AND_DENSE:
        raise ValueError(f"not supported yet: mixture of experts of model type {family}")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ValueError("not supported yet: layers without experts (mlp_only_layers, decoder_sparse_step)")
    numbers = {key: _number(config, key) for key in ("num_experts_per_tok", "moe_intermediate_size")}
    numbers["num_experts"] = _number(config, found[0])
    for key in ("n_shared_experts", "first_k_dense_replace"):
        numbers[key] = _number(config, key, _SHARED_AND_DENSE[family], least=0)
    if numbers["num_experts_per_tok"] > numbers["num_experts"]:
        accepted = f"at most {numbers['num_experts']} ({found[0]})"
        raise ValueError(f"num_experts_per_tok: found {numbers['num_experts_per_tok']}, accepted is {accepted}")
    return numbers


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Of each layer that has one, as a family's configs mean them where they do not list types of layers.

    Raises:
        ValueError: a number is wrong.
    """
    kind, types = config.get("model_type"), config.get("layer_types")
    if config.get("sliding_window") is None or not config.get("use_sliding_window", kind not in _WINDOWS_ASKED_FOR):
        return ()
    if isinstance(types, list):
        sliding = types.count("sliding_attention")
    elif _is_gemma(config):
        pattern = 2 if kind == "gemma2" else _number(config, "sliding_window_pattern", 6)
        sliding = layers - layers // pattern
    elif kind in _WINDOWS_ASKED_FOR:
        sliding = max(0, layers - _number(config, "max_window_layers", 28, least=0))
    else:
        sliding = layers if kind == "mistral" else 0
    return (_number(config, "sliding_window"),) * sliding


def _is_gemma(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in {"gemma2", "gemma3_text"}


def _number(config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        found = "nothing" if value is None else repr(value)[:40]
        raise ValueError(f"{key}: found {found}, accepted is a whole number from {least} to {_LARGEST:,}")
    return value
