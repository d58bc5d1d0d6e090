"""Small models with seeded random weights and a byte-level tokenizer, for quickstarts, tests and benchmarks.

A folder written here loads in transformers and in vLLM like any downloaded one. Text never has to be downloaded or
trained for the tokenizer: it knows the 256 bytes and the chatml and tool markers, nothing else.
"""

import argparse
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4MoeConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging as transformers_logging

from echorl_trainer.experts import stored_buffers

Family = Literal["qwen3", "llama", "qwen3_moe", "glm4_moe", "gemma2", "gemma3_text", "mistral"]
Dtype = Literal["float32", "bfloat16"]
_CONFIGS: dict[str, Any] = {
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "glm4_moe": Glm4MoeConfig,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "mistral": MistralConfig,
}

_BIASES = 0.05
"""Size of routers' biases, which are zero in a new model: enough to change what tokens choose, and not to decide it."""

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# A turn never changes how earlier turns render, so histories are append-only. Tool messages in a row share a user turn.
CHAT_TEMPLATE = r"""
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n\nThese functions may be called, one JSON signature a line:\n<tools>\n' }}
{%- for tool in tools %}{{- tool | tojson + '\n' }}{% endfor %}
{{- '</tools>\n\nA call is a JSON object in a pair of tags:\n<tool_call>\n' }}
{{- '{"name": <function name>, "arguments": <object of arguments>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first and tools %}
{%- elif message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson %}
{%- if message.content or not loop.first %}{{- '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' + arguments + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""


@dataclass(frozen=True, kw_only=True)
class SeededShape:
    """Dimensions of a decoder-only model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02
    rope_theta: float = 10_000.0
    num_experts: int = 8
    """Of mixtures of experts alone, as the next two."""
    experts_per_token: int = 2
    moe_intermediate_size: int | None = None
    """Of one expert; None: ``intermediate_size`` divided by ``num_experts``."""
    sliding_window: int = 512
    """Of ``mistral``, and of every other layer of ``gemma2`` and ``gemma3_text``."""
    vocab_size: int | None = None
    """Rows of the embedding; None means the tokenizer's length. No text gives rows beyond that."""


SHAPES = {
    "tiny": SeededShape(
        hidden_size=128,
        intermediate_size=384,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        sliding_window=8,
    ),
    "0.6b": SeededShape(
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        vocab_size=151_936,
    ),
}
SHAPES["8b"] = replace(
    SHAPES["0.6b"], hidden_size=4096, intermediate_size=12_288, num_layers=36, num_heads=32, num_kv_heads=8
)
SHAPES["0.6b-bytes"] = replace(SHAPES["0.6b"], vocab_size=None)
SHAPES["30b-a3b-bytes"] = SeededShape(
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=4,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    max_position_embeddings=40_960,
    rope_theta=1_000_000.0,
    num_experts=128,
    experts_per_token=8,
    moe_intermediate_size=768,
)
"""Shapes by name: ``tiny`` has 0.66 M parameters, ``0.6b`` and ``8b`` are those of Qwen3-0.6B and 8B,
``30b-a3b-bytes`` has four of the 48 layers of Qwen3-30B-A3B, or as a dense family layers of as many active parameters.
Those of ``-bytes`` have an embedding
for bytes only, so that random weights sample text."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 256 bytes, three special tokens and six markers: 265 entries, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKER_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=TURN_END, pad_token=END_OF_TEXT, chat_template=CHAT_TEMPLATE
    )


def seeded_config(shape: SeededShape, tokenizer: PreTrainedTokenizerFast, *, family: Family, tie: bool) -> Any:
    """The config of a model of that shape and family, of transformers' class for it.

    Raises:
        ValueError: unknown family, or a vocabulary smaller than the tokenizer.
    """
    vocab_size = shape.vocab_size or len(tokenizer)
    if vocab_size < len(tokenizer):
        raise ValueError(f"vocab_size is {vocab_size}, but the byte tokenizer has {len(tokenizer)} entries")
    if family not in _CONFIGS:
        raise ValueError(f"family is {family!r}; known families: {', '.join(_CONFIGS)}")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    own: dict[str, Any] = {}
    if family == "qwen3_moe":
        own = {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.moe_intermediate_size or shape.intermediate_size // shape.num_experts,
            "norm_topk_prob": True,
        }
    if family == "glm4_moe":
        rope |= {"partial_rotary_factor": 0.5}
        own = {
            "n_routed_experts": shape.num_experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.moe_intermediate_size or shape.intermediate_size // shape.num_experts,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
        }
    if family in {"gemma2", "gemma3_text", "mistral"}:
        own = {"sliding_window": shape.sliding_window}
    if family.startswith("gemma"):
        kinds = ["sliding_attention", "full_attention"]
        own |= {"query_pre_attn_scalar": shape.head_dim}
        own |= {"layer_types": [kinds[layer % 2] for layer in range(shape.num_layers)]}
    if family == "gemma3_text":
        rope = {"sliding_attention": rope, "full_attention": {**rope, "rope_theta": 100 * shape.rope_theta}}
    return _CONFIGS[family](
        **own,
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        initializer_range=shape.initializer_range,
        rope_parameters=rope,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def write_seeded_model(
    folder: Path,
    shape: SeededShape,
    seed: int,
    *,
    family: Family = "qwen3",
    tie: bool = False,
    dtype: Dtype = "float32",
) -> None:
    """Write config, weights, tokenizer and chat template to ``folder``, which appears complete or not at all.

    Weights depend on shape, family, tie and seed alone; with bfloat16 they are the rounded float32 ones.

    Raises:
        FileExistsError: ``folder`` is there already and not empty.
        ValueError: unknown family, or a vocabulary smaller than the tokenizer.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: is not empty; a model is only written to a new or empty folder")
    tokenizer = byte_tokenizer()
    config = seeded_config(shape, tokenizer, family=family, tie=tie)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        biases = {name: _BIASES * torch.randn_like(one) for name, one in stored_buffers(model).items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        model.to(getattr(torch, dtype))
        for name, bias in biases.items():  # float32 in folders of every dtype
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, bias)
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def main() -> None:
    """Command line: write one model."""
    parser = argparse.ArgumentParser(prog="python -m echorl_trainer.seeded", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--family", choices=list(_CONFIGS), default="qwen3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tie", action="store_true", help="share the embedding with the output head")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    chosen = parser.parse_args()
    transformers_logging.disable_progress_bar()
    write_seeded_model(
        chosen.out, SHAPES[chosen.shape], chosen.seed, family=chosen.family, tie=chosen.tie, dtype=chosen.dtype
    )


if __name__ == "__main__":
    main()
