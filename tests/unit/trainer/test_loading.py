"""Weights that are read rank by rank are transformers' own, bit for bit, and no rank holds much more than its shard."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Glm4MoeConfig, GraniteConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from echorl_core.config import LoraConfig
from echorl_testing.orchestrator.packs import whole_policy
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.loading_ranks import config_of, expected, loaded, peak_of_loading
from echorl_testing.trainer.tiny_learner import alone, tiny_model
from echorl_trainer.loading import start_policy
from echorl_trainer.model import meta_policy
from echorl_trainer.model_folder import tensor_files
from echorl_trainer.reference import check_against_reference, small_config
from echorl_trainer.seeded import SeededShape, write_seeded_model

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
"""None of the widths is a power of two, and two ranks do not divide the vocabulary."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def write(folder, config, *, dtype=torch.float32, **options):
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder, **options)
    return folder


def qwen3(folder, **options):
    return write(folder, Qwen3Config(**SIZES, tie_word_embeddings=False), **options)


def tied(folder):
    return write(folder, Qwen3Config(**SIZES, tie_word_embeddings=True))


def half_in_files(folder):
    """Several files, in bfloat16."""
    write(folder, Qwen3Config(**SIZES, tie_word_embeddings=False), dtype=torch.bfloat16, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def scaled_rotary(folder):
    return write(folder, LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE, attention_bias=True))


def without_prefix(folder):
    """A decoder that was saved without the head's wrapper, so that every name lacks ``model.``."""
    tied(folder)
    file = folder / "model.safetensors"
    renamed = {name.removeprefix("model."): value for name, value in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})
    return folder


def experts(folder):
    """Eleven experts, which neither two ranks nor three divide, in files that part the matrices of an expert."""
    sizes = {"num_experts": 11, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    write(folder, Qwen3MoeConfig(**SIZES, **sizes, tie_word_embeddings=False), max_shard_size="3KB")
    assert "model.layers.1.mlp.experts.10.up_proj.weight" in tensor_files(folder)
    return folder


def sigmoid_experts(folder):
    """Routers with biases, shared experts, a first layer without; and a layer that predicts further tokens."""
    sizes = {"n_routed_experts": 11, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "pad_token_id": 0}
    write(folder, Glm4MoeConfig(**SIZES, **sizes, use_qk_norm=True, attention_bias=True))
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.gate.e_score_correction_bias"] = torch.randn(11)
    weights |= {name.replace(".1.", ".2."): -one for name, one in weights.items() if ".layers.1." in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    kinds = (qwen3, tied, half_in_files, scaled_rotary, without_prefix, experts, sigmoid_experts)
    return [make(root / make.__name__) for make in kinds]


@pytest.fixture(scope="module")
def whole_loads(folders):
    found = {folder.name: expected(folder) for folder in folders}
    assert all(any("inv_freq" in name for name in digests) for digests, _ in found.values())
    return found


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_parameters_buffers_and_the_fingerprint_are_those_of_a_whole_load(folders, whole_loads, num_ranks):
    for found in on_ranks(num_ranks, loaded, folders):
        assert found == whole_loads


def test_an_adapter_has_the_same_base_and_the_same_start_beside_weights_in_half_precision(tmp_path):
    folder = tiny_model(tmp_path / "m")
    lora = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj"])
    with alone() as ranks:
        plain = start_policy(config_of(folder), ranks, seed=3)
        policy = start_policy(config_of(folder, dtype="bfloat16", lora=lora), ranks, seed=3)
        again = start_policy(config_of(folder, lora=lora), ranks, seed=3)
    assert policy.fingerprint == plain.fingerprint
    values = dict(plain.model.named_parameters())
    starts = {name: one for name, one in again.model.named_parameters() if "lora_" in name}
    for name, parameter in policy.model.named_parameters():
        if name in starts:
            assert torch.equal(parameter.to_local(), starts.pop(name).to_local()), name
        else:
            assert torch.equal(parameter.to_local(), values[name].to_local().bfloat16()), name
    assert not starts


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_rank_holds_at_most_twice_its_shard_and_one_tensor_while_it_loads(tmp_path, family):
    """128 MiB in float32, so 64 MiB a rank; the largest tensor has 16 MiB. A whole load would take 128 MiB or more."""
    shape = SeededShape(
        hidden_size=512,
        intermediate_size=1536,
        num_layers=9,
        num_heads=4,
        num_kv_heads=2,
        head_dim=128,
        vocab_size=8192,
    )
    write_seeded_model(tmp_path / "m", shape, 0, family=family)
    largest = 8192 * 512 * 4
    for grown, held in on_ranks(2, peak_of_loading, tmp_path / "m", tiny_model(tmp_path / "warm")):
        assert held > 50 * 2**20
        assert grown <= 2 * held + largest, f"{grown / 2**20:.0f} MiB, with a shard of {held / 2**20:.0f} MiB"


def test_tied_weights_that_differ_are_refused(tmp_path):
    folder = qwen3(tmp_path / "m")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "tie_word_embeddings": True}))
    with pytest.raises(ValueError, match=r"different values for lm_head\.weight and model\.embed_tokens\.weight"):
        whole_policy(config_of(folder))


def test_other_shapes_than_the_config_describes_are_refused(tmp_path):
    folder = qwen3(tmp_path / "m")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "intermediate_size": 48}))
    message = "model.layers.0.mlp.down_proj.weight: found shape [24, 40], config.json makes it [24, 48]"
    with pytest.raises(ValueError, match=re.escape(message)):
        whole_policy(config_of(folder))


@pytest.mark.parametrize("damage", ["no files", "cut off"])
def test_files_that_cannot_be_read_are_named(tmp_path, damage):
    folder = qwen3(tmp_path / "m")
    file = folder / "model.safetensors"
    if damage == "no files":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"model\.path: .*(has no safetensors files|deserializing)"):
        whole_policy(config_of(folder))


def test_quantised_weights_are_refused(tmp_path):
    folder = qwen3(tmp_path / "m")
    described = json.loads((folder / "config.json").read_text())
    quantised = {**described, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(ValueError, match="not supported yet: quantised weights"):
        meta_policy(config_of(folder))


def test_the_small_copy_keeps_what_makes_the_architecture():
    big = {**SIZES, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    small = small_config(
        Qwen3Config(**{**big, "num_hidden_layers": 36, "vocab_size": 151_936, "eos_token_id": 151_645})
    )
    assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim, small.hidden_size) == (
        8,
        2,
        128,
        1024,
    )
    assert (small.num_hidden_layers, len(small.layer_types), small.vocab_size, small.eos_token_id) == (2, 2, 128, None)
    check_against_reference(Qwen3Config(**{**big, "num_hidden_layers": 36, "vocab_size": 151_936}))


def test_the_check_sees_a_scaled_logit_of_a_model_that_is_too_large_to_be_made():
    config = GraniteConfig(
        hidden_size=4096,
        num_hidden_layers=400,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=49_152,
        logits_scaling=1.01,
    )
    with pytest.raises(ValueError, match="packed logprobs of granite differ from transformers' own by 0"):
        check_against_reference(config)
