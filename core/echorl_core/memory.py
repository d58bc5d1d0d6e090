"""What a GPU must hold to train a model, and to serve it: arithmetic on numbers, in bytes.

It is of decoders with gated feed-forward layers and grouped attention, as Llama's and Qwen's. Biases and the norms of
heads are left out: less than a thousandth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2
CHUNK_ROWS = 8192
"""Tokens that the output head scores at once on a GPU, in bfloat16."""
RESERVED_BYTES = int(1.5 * GIB)
"""Of CUDA, the kernels and the communicators."""
ALLOCATOR_SHARE = 0.04
"""What the allocator holds beyond what is asked of it, as a share of that."""
_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0 + 4.0 / 256}
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


@dataclass(frozen=True)
class Training:
    """How a rank trains."""

    shards: int
    """Ranks that one copy of the model is sharded over."""
    micro_batch_tokens: int
    compute_bytes: int = BFLOAT16
    """Of a value in the compute dtype."""
    optimizer: Literal["adamw", "muon", "signSgd", "sgd"] = "adamw"
    state_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    cpu_offload: bool = False
    activation_checkpointing: Literal["none", "selective", "full"] = "selective"
    gradient_accumulation: Literal["sharded", "unsharded"] = "sharded"
    adapter_parameters: int | None = None
    """Of an adapter that trains; None: all weights train."""


@dataclass(frozen=True)
class TrainerMemory:
    """What one rank holds at the worst moment of a step, in bytes of its GPU but for ``host_state``."""

    master_weights: int
    """Its shard of the weights that train, in float32."""
    frozen_weights: int
    """Its shard of the weights that do not, in the compute dtype."""
    gradients: int
    """Its shard in float32, and where a step reduces once whole ones in float32 and in the compute dtype."""
    optimizer_state: int
    """Its shard of the moments; 0 where they lie in host memory."""
    gathered_weights: int
    """Whole weights in the compute dtype: embedding, head and two layers, or all where a step gathers once."""
    activations: int
    """What all layers keep for backward."""
    buffers: int
    """The largest of: the output head's, those of a layer in backward, those of reducing the embedding's gradient."""
    host_state: int
    """Its shard of moments that lie in host memory."""

    @property
    def total(self) -> int:
        """All of it on the GPU, with what CUDA and the allocator take."""
        held = (
            *(self.master_weights, self.frozen_weights, self.gradients, self.optimizer_state),
            *(self.gathered_weights, self.activations, self.buffers),
        )
        return int(sum(held) * (1 + ALLOCATOR_SHARE)) + RESERVED_BYTES


def trainer_memory(shape: ModelShape, use: Training) -> TrainerMemory:
    """What a rank holds, all micro-batches full."""
    trained = shape.parameters if use.adapter_parameters is None else use.adapter_parameters
    frozen = 0 if use.adapter_parameters is None else shape.parameters
    state = _state_bytes(shape, use, trained) // use.shards
    once = use.gradient_accumulation == "unsharded"
    everything = trained + frozen
    gathered = everything if once else shape.outer_parameters + 2 * shape.layer_parameters
    gradients = FLOAT32 * trained // use.shards + (FLOAT32 * trained if once else 0)
    return TrainerMemory(
        master_weights=FLOAT32 * trained // use.shards,
        frozen_weights=use.compute_bytes * frozen // use.shards,
        gradients=gradients,
        optimizer_state=0 if use.cpu_offload else state,
        gathered_weights=use.compute_bytes * gathered,
        activations=shape.num_hidden_layers * use.micro_batch_tokens * kept_bytes(shape, use),
        buffers=max(_head_buffers(shape, use), _layer_buffers(shape, use), _outer_buffers(shape, use)),
        host_state=state if use.cpu_offload else 0,
    )


def _state_bytes(shape: ModelShape, use: Training, trained: int) -> int:
    """Moments of all that trains."""
    if use.optimizer in {"sgd", "signSgd"}:
        return 0
    one = _STATE_BYTES[use.state_dtype]
    if use.optimizer == "adamw":
        return int(2 * one * trained)
    in_layers = shape.num_hidden_layers * shape.layer_matrices if use.adapter_parameters is None else trained
    return int(one * (in_layers + 2 * (trained - in_layers)))


def kept_bytes(shape: ModelShape, use: Training) -> int:
    """Bytes that a layer keeps for backward, per token.

    ``full``: its input. ``selective``: that, what its seven products and attention give, and attention's normaliser.
    ``none``: ``layer_bytes``.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query, key = shape.query_width, shape.key_width
    if use.activation_checkpointing == "full":
        return use.compute_bytes * hidden
    if use.activation_checkpointing == "selective":
        values = 3 * hidden + 2 * query + 2 * key + 2 * inner
        return use.compute_bytes * values + FLOAT32 * shape.num_attention_heads
    return layer_bytes(shape, use)


def layer_bytes(shape: ModelShape, use: Training) -> int:
    """Bytes that one layer needs for backward with nothing recomputed, per token, as it runs uncompiled.

    Two norms and the norms of queries and keys keep their input in float32 and their result; rotation keeps queries and
    keys twice; attention keeps its four arguments, the feed-forward part three results.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query, key = shape.query_width, shape.key_width
    norms = (FLOAT32 + use.compute_bytes) * (2 * hidden + query + key)
    rest = 2 * (query + key) + 2 * query + 2 * key + 4 * inner
    return norms + use.compute_bytes * rest + FLOAT32 * shape.num_attention_heads


def _head_buffers(shape: ModelShape, use: Training) -> int:
    """A chunk of the logits' gradient, the gradients of hidden states and, where it trains, of the head."""
    rows = min(CHUNK_ROWS, use.micro_batch_tokens)
    tokens = use.micro_batch_tokens * shape.hidden_size
    head = 0 if use.adapter_parameters is not None else shape.vocab_size * shape.hidden_size
    return use.compute_bytes * (rows * shape.vocab_size + 2 * tokens) + (FLOAT32 + use.compute_bytes) * head


def _layer_buffers(shape: ModelShape, use: Training) -> int:
    """A layer's activations once more, gradients of what goes through it, its own, and two on their way in float32."""
    tokens = use.micro_batch_tokens
    recomputed = 0 if use.activation_checkpointing == "none" else tokens * layer_bytes(shape, use)
    flowing = use.compute_bytes * tokens * (2 * shape.hidden_size + 3 * shape.intermediate_size)
    if use.adapter_parameters is not None:
        return recomputed + flowing
    head = use.compute_bytes * shape.vocab_size * shape.hidden_size
    return recomputed + flowing + head + (use.compute_bytes + 2 * FLOAT32) * shape.layer_parameters


def _outer_buffers(shape: ModelShape, use: Training) -> int:
    """Gradients of embedding and head, and as they are reduced in float32."""
    return 0 if use.adapter_parameters is not None else (use.compute_bytes + FLOAT32) * shape.outer_parameters


def adapter_parameters(shape: ModelShape, rank: int, targets: tuple[str, ...]) -> int:
    """Parameters of a low-rank adapter: rank x (inputs + outputs) of every matrix that a target names."""
    found = 0
    for name, (inputs, outputs) in shape.linear_layers.items():
        named = [target for target in targets if target.rpartition(".")[2] == name]
        whole = any(".layers." not in f".{target}" for target in named)
        found += (shape.num_hidden_layers if whole else len(named)) * rank * (inputs + outputs)
    return found


@dataclass(frozen=True)
class Serving:
    """How an engine serves."""

    tensor_parallel: int
    max_model_len: int
    compute_bytes: int = BFLOAT16
    gpu_share: float = 0.92
    """Share of a GPU that vLLM takes: its ``--gpu-memory-utilization``."""


@dataclass(frozen=True)
class EngineMemory:
    """What one GPU of an engine holds, in bytes; the cache is what is left."""

    weights: int
    workspace: int
    """Activations of 8,192 tokens, logits of 1,024 sequences, graphs, and what CUDA takes."""
    cache: int
    """May be below 0: then weights and workspace alone do not fit."""
    cache_tokens: int
    """Tokens that all GPUs of the engine together have keys and values of."""
    max_model_len: int

    @property
    def sequences(self) -> int:
        """Full-length sequences at once."""
        return self.cache_tokens // self.max_model_len

    @property
    def fits(self) -> bool:
        """Whether one sequence of full length does: with less vLLM does not start."""
        return self.sequences >= 1


def engine_memory(shape: ModelShape, use: Serving, gpu_bytes: int) -> EngineMemory:
    """What a GPU of an engine holds, by arithmetic."""
    split = use.tensor_parallel
    weights = use.compute_bytes * shape.parameters // split
    through = use.compute_bytes * 8192 * (2 * shape.intermediate_size // split + 4 * shape.hidden_size)
    workspace = through + 2 * FLOAT32 * 1024 * shape.vocab_size + RESERVED_BYTES
    cache = int(use.gpu_share * gpu_bytes) - weights - workspace
    # Heads that are fewer than GPUs are held several times.
    heads = -(-shape.num_key_value_heads // split)
    per_token = 2 * use.compute_bytes * shape.num_hidden_layers * heads * shape.head_dim
    return EngineMemory(weights, workspace, cache, max(0, cache) // per_token, use.max_model_len)
