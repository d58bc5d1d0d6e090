"""What a trainer rank's GPU must hold: arithmetic on numbers, in bytes."""

from dataclasses import dataclass
from typing import Literal

from echorl_cli.plan.model_shape import BFLOAT16, FLOAT32, RESERVED_BYTES, ModelShape

CHUNK_ROWS = 8192
"""Tokens that the output head scores at once on a GPU, in bfloat16."""
ALLOCATOR_SHARE = 0.04
"""What the allocator holds beyond what is asked of it, as a share of that."""
_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0 + 4.0 / 256}


@dataclass(frozen=True)
class Training:
    """How a rank trains."""

    shards: int
    """Ranks that one copy of the model is sharded over."""
    micro_batch_tokens: int
    context: int = 1
    """Ranks that share a micro-batch."""
    expert: int = 1
    """Ranks over which experts are split."""
    compute_bytes: int = BFLOAT16
    """Of a value in the compute dtype."""
    optimizer: Literal["adamw", "muon", "signSgd", "sgd"] = "adamw"
    state_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    cpu_offload: bool = False
    activation_checkpointing: Literal["none", "selective", "full"] = "selective"
    gradient_accumulation: Literal["sharded", "unsharded"] = "sharded"
    async_save: bool = True
    """Whether checkpoints are written from a copy in host memory."""
    memory_copies: int = 0
    """Copies of the state that are kept in host memory for processes that start in place."""
    adapter_parameters: int | None = None
    """Of an adapter that trains; None: all weights train."""
    serving_ranks: int = 1
    """That serve a version among them."""

    @property
    def rank_tokens(self) -> int:
        """Of a micro-batch, those whose activations one rank has."""
        return -(-self.micro_batch_tokens // self.context)


@dataclass(frozen=True)
class TrainerMemory:
    """What one rank holds at the worst moment of a step, in bytes of its GPU but for ``host_...``."""

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
    host_checkpoint: int
    """The copy of its shards that a checkpoint is written from: weights that train, and moments."""
    host_copies: int
    """The copies of its shards that processes start from in place."""
    host_versions: int
    """Of a rank that serves: its files of two policy versions, about; a tensor is never divided."""

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
    both = ((shape, shape.expert_layers), (shape.dense, shape.dense_layers))
    kinds = [(kind, layers) for kind, layers in both if layers]
    trained = shape.parameters if use.adapter_parameters is None else use.adapter_parameters
    frozen = 0 if use.adapter_parameters is None else shape.parameters
    state = _state_bytes(shape, use, trained) // use.shards
    copy = FLOAT32 * trained // use.shards + state
    once = use.gradient_accumulation == "unsharded"
    elsewhere = shape.expert_layers * _elsewhere(shape, use)
    layers = 2 * (shape.layer_parameters - _elsewhere(shape, use))
    gathered = trained + frozen - elsewhere if once else shape.outer_parameters + layers
    whole = trained - elsewhere if use.adapter_parameters is None else trained
    gradients = FLOAT32 * trained // use.shards + (FLOAT32 * whole if once else 0)
    return TrainerMemory(
        master_weights=FLOAT32 * trained // use.shards,
        frozen_weights=use.compute_bytes * frozen // use.shards,
        gradients=gradients,
        optimizer_state=0 if use.cpu_offload else state,
        gathered_weights=use.compute_bytes * gathered,
        activations=use.rank_tokens * sum(layers * kept_bytes(kind, use) for kind, layers in kinds),
        buffers=max(
            *(_layer_buffers(kind, use) for kind, _ in kinds), _head_buffers(shape, use), _outer_buffers(shape, use)
        ),
        host_state=state if use.cpu_offload else 0,
        host_checkpoint=copy if use.async_save else 0,
        host_copies=use.memory_copies * copy,
        host_versions=2 * use.compute_bytes * trained // use.serving_ranks,
    )


def _elsewhere(shape: ModelShape, use: Training) -> int:
    """Parameters of a layer that no rank ever gathers, as their experts are other ranks'."""
    return shape.layer_experts - shape.layer_experts // use.expert


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

    ``full``: its input. ``selective``: that, what its seven products and attention give, and attention's normaliser;
    with experts what each of a token's gives, those that all share as one, and the router. ``none``: ``layer_bytes``.
    """
    hidden, inner = shape.hidden_size, shape.inner_width
    query, key = shape.query_width, shape.key_width
    if use.activation_checkpointing == "full":
        return use.compute_bytes * hidden
    if use.activation_checkpointing == "selective":
        results = shape.num_experts_per_tok + bool(shape.n_shared_experts)
        values = (2 + results) * hidden + 2 * query + 2 * key + 2 * inner
        router = shape.num_experts if shape.has_experts else 0
        return use.compute_bytes * values + FLOAT32 * (shape.num_attention_heads + router)
    return layer_bytes(shape, use)


def layer_bytes(shape: ModelShape, use: Training) -> int:
    """Bytes that one layer needs for backward with nothing recomputed, per token, as it runs uncompiled.

    Two norms and the norms of queries and keys keep their input in float32 and their result; rotation keeps queries and
    keys twice; attention keeps its four arguments, the feed-forward part three results. With experts each of a token's
    keeps its input and its result too, as torch's products do, and the router its input, logits and their softmax in
    float32.
    """
    hidden, inner = shape.hidden_size, shape.inner_width
    query, key = shape.query_width, shape.key_width
    norms = (FLOAT32 + use.compute_bytes) * (2 * hidden + query + key)
    rest = 2 * (query + key) + 2 * query + 2 * key + 4 * inner
    router = 0
    if shape.has_experts:
        rest += 2 * shape.num_experts_per_tok * hidden
        router = FLOAT32 * (hidden + 2 * shape.num_experts)
    return norms + use.compute_bytes * rest + FLOAT32 * shape.num_attention_heads + router


def _head_buffers(shape: ModelShape, use: Training) -> int:
    """A chunk of the logits' gradient, the gradients of hidden states and, where it trains, of the head."""
    rows = min(CHUNK_ROWS, use.rank_tokens)
    tokens = use.rank_tokens * shape.hidden_size
    head = 0 if use.adapter_parameters is not None else shape.vocab_size * shape.hidden_size
    return use.compute_bytes * (rows * shape.vocab_size + 2 * tokens) + (FLOAT32 + use.compute_bytes) * head


def _layer_buffers(shape: ModelShape, use: Training) -> int:
    """A layer's activations once more, gradients of what goes through it, its own, and two on their way in float32.

    Of experts that are split, a rank gets as many tokens as it sends, where all are chosen alike, and has them twice.
    """
    tokens = use.rank_tokens
    recomputed = 0 if use.activation_checkpointing == "none" else tokens * layer_bytes(shape, use)
    widths = 2 * shape.hidden_size + 3 * shape.inner_width
    if shape.has_experts:
        widths += (2 if use.expert == 1 else 4) * shape.num_experts_per_tok * shape.hidden_size
    flowing = use.compute_bytes * tokens * widths
    if use.adapter_parameters is not None:
        return recomputed + flowing
    head = use.compute_bytes * shape.vocab_size * shape.hidden_size
    own = shape.layer_parameters - _elsewhere(shape, use)
    return recomputed + flowing + head + (use.compute_bytes + 2 * FLOAT32) * own


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
