"""What an engine's GPUs must hold: arithmetic on numbers, in bytes."""

from dataclasses import dataclass

from echorl_cli.plan.model_shape import BFLOAT16, FLOAT32, RESERVED_BYTES, ModelShape


@dataclass(frozen=True)
class Serving:
    """How an engine serves."""

    tensor_parallel: int
    max_model_len: int
    compute_bytes: int = BFLOAT16
    fp8: bool = False
    """Whether layers' products are by weights of a byte, with a float32 for each of their outputs."""
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
    """Tokens, in sequences of full length, that all GPUs of the engine together have keys and values of."""
    max_model_len: int

    @property
    def sequences(self) -> int:
        """Full-length sequences at once."""
        return self.cache_tokens // self.max_model_len

    @property
    def fits(self) -> bool:
        """Whether one sequence of full length does: with less vLLM does not start."""
        return self.sequences >= 1


_STEP_TOKENS = 8192
"""Of an engine's step at most, as vLLM sets it."""


def engine_memory(shape: ModelShape, use: Serving, gpu_bytes: int) -> EngineMemory:
    """What a GPU of an engine holds, by arithmetic."""
    split = use.tensor_parallel
    products, scales = shape.products if use.fp8 else (0, 0)
    weights = (use.compute_bytes * (shape.parameters - products) + products + FLOAT32 * scales) // split
    through = use.compute_bytes * _STEP_TOKENS * (2 * shape.inner_width // split + 4 * shape.hidden_size)
    workspace = through + 2 * FLOAT32 * 1024 * shape.vocab_size + RESERVED_BYTES
    cache = int(use.gpu_share * gpu_bytes) - weights - workspace
    # Heads that are fewer than GPUs are held several times.
    heads = -(-shape.num_key_value_heads // split)
    longest = use.max_model_len
    # A layer with a window holds what it sees and what a step adds.
    sliding = sum(min(longest, window + _STEP_TOKENS) for window in shape.windows)
    held = sliding + (shape.num_hidden_layers - len(shape.windows)) * longest
    sequence = 2 * use.compute_bytes * heads * shape.head_dim * held
    return EngineMemory(weights, workspace, cache, max(0, cache) * longest // sequence, longest)
