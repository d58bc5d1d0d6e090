"""Packed logprobs against transformers' own, on a small copy of a model: its architecture with few and narrow layers.

So the check costs the same for every model, and no rank needs whole weights for it.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from echorl_trainer.experts import has_experts, stored_buffers
from echorl_trainer.model import PackedTokens, Policy, fill_buffers, meta_model

_LENGTHS = (7, 5)
_TOLERANCE = 1e-3
_MOST = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
    "moe_intermediate_size": 64,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    # So that they change what seven tokens are scored.
    "sliding_window": 3,
    "attn_logit_softcapping": 1.0,
    "final_logit_softcapping": 1.0,
}


@torch.no_grad()
def check_against_reference(config: Any) -> None:
    """Two documents in one pack against transformers' eager forward of each: catches any step that Policy leaves out.

    Among those would be a scaled logit, a window or softcap that is not heeded, an attention that does not go through
    the registered function, or a buffer that is not computed for a model from the meta device.

    Raises:
        ValueError: they differ, or no small copy can be made.
    """
    name = config.architectures[0] if config.architectures else config.model_type
    try:
        small = small_config(config)
        # Its weights come from a generator of their own: torch's goes on as if nothing had been drawn.
        with torch.random.fork_rng(devices=[]):
            kinds = ["attn_implementation", *(["experts_implementation"] if has_experts(small) else [])]
            plain = dict.fromkeys(kinds, "eager")
            eager = AutoModelForCausalLM.from_config(small, dtype=torch.float32, **plain).eval()
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(f"not supported yet: {name}: no small copy can be made of it: {error}") from error
    _draw(eager)
    # A model keeps its config, and in it how it attends.
    model = meta_model(small_config(config))
    policy = Policy(model.to_empty(device="cpu"), torch.float32)
    model.tie_weights()
    model.load_state_dict(eager.state_dict())
    fill_buffers(model)
    token_ids = torch.arange(sum(_LENGTHS)) % small.vocab_size
    documents = token_ids.split(list(_LENGTHS))
    logits = [eager(document[None], use_cache=False).logits[0, :-1] for document in documents]
    expected = torch.cat(
        [part.log_softmax(-1).gather(1, ids[1:, None])[:, 0] for part, ids in zip(logits, documents, strict=True)]
    )
    worst = float((policy(_packed(token_ids)).logprobs - expected).abs().max())
    if not worst <= _TOLERANCE:
        raise ValueError(f"not supported yet: packed logprobs of {name} differ from transformers' own by {worst:.3g}")


def small_config(config: Any) -> Any:
    """The same architecture with at most 2 layers, 2 key/value heads and 128 tokens; a head keeps its width.

    Where layers are of different types, two of them are kept.
    """
    plain = config.to_dict()
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    kept = min(groups, _MOST["num_key_value_heads"]) * (heads // groups)
    changes = {key: min(plain[key], most) for key, most in _MOST.items() if isinstance(plain.get(key), int | float)}
    changes |= {"num_attention_heads": kept, "hidden_size": config.hidden_size * kept // heads}
    # Ids of special tokens may lie beyond the small vocabulary; nothing is generated.
    changes |= {key: None for key in ("pad_token_id", "bos_token_id", "eos_token_id") if key in plain}
    layers = config.num_hidden_layers
    types = getattr(config, "layer_types", None) or []
    other = next((place for place, one in enumerate(types) if one != types[0]), 1)
    by_layer = {key: [one[0], *one[other : other + 1]] for key, one in plain.items() if _is_by_layer(one, layers)}
    return type(config).from_dict({**plain, **by_layer, **changes})


def _is_by_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list) and len(value) == layers


def _draw(model: Any) -> None:
    """Weights that keep the size of what goes through them, so that attention and logits are far from uniform."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(noise, alpha=0.1)
    for buffer in stored_buffers(model).values():
        buffer.add_(torch.randn(buffer.shape, generator=generator), alpha=0.1)


def _packed(token_ids: torch.Tensor) -> PackedTokens:
    offsets = torch.tensor([0, *_LENGTHS]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in _LENGTHS])
    rows = positions.nonzero()[:, 0]
    ones = torch.ones(len(token_ids))
    return PackedTokens(token_ids, positions, offsets.to(torch.int32), max(_LENGTHS), rows, ones)
