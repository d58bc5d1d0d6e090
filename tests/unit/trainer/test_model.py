"""Loading, refusals, scores, memory-saving options and the weights that are published."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4MoeConfig,
    GraniteConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    VaultGemmaConfig,
)

from echorl_core.config import ModelConfig
from echorl_testing.orchestrator.packs import SHAPE, model_config, packed, tiny_policy, whole_policy
from echorl_trainer.lora import published_parameters
from echorl_trainer.model import checkpoint_layers, meta_policy
from echorl_trainer.reference import check_against_reference, small_config

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def documents():
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(265, (length,), generator=generator) for length in (7, 12)]


def saved(folder, config):
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return ModelConfig(path=str(folder), dtype="float32", max_model_len=64, renderer="engine")


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "glm4_moe", "gemma2", "gemma3_text", "mistral"])
@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@torch.no_grad()
def test_scores_match_the_reference_model_with_a_temperature_per_token(tmp_path, family, tie):
    policy = tiny_policy(tmp_path / "m", family=family, tie=tie)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32, attn_implementation="eager")
    temperature = 0.5 + torch.rand(19, generator=torch.Generator().manual_seed(0))
    scores = policy(packed(documents(), temperature))
    logprobs, entropies = [], []
    for ids, own in zip(documents(), temperature.split([7, 12]), strict=True):
        every = (reference(ids[None]).logits[0, :-1] / own[1:, None]).log_softmax(-1)
        logprobs.append(every.gather(1, ids[1:, None])[:, 0])
        entropies.append(-(every.exp() * every).sum(-1))
    torch.testing.assert_close(scores.logprobs, torch.cat(logprobs), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.entropy, torch.cat(entropies), rtol=1e-5, atol=1e-5)
    assert policy.tied == tie


@torch.no_grad()
def test_only_the_chosen_rows_are_scored(tmp_path):
    policy = tiny_policy(tmp_path / "m")
    everything = packed(documents())
    chosen = torch.tensor([3, 8, 18])
    some = type(everything)(**{**vars(everything), "rows": chosen})
    full = dict(zip(everything.rows.tolist(), policy(everything).logprobs.tolist(), strict=True))
    assert policy(some).logprobs.tolist() == pytest.approx([full[row] for row in chosen.tolist()], abs=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gemma2"])
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_activation_checkpointing_changes_no_gradient_and_no_name(tmp_path, mode, family):
    plain, saving = (tiny_policy(tmp_path / "m", family=family) for _ in range(2))
    checkpoint_layers(saving, mode)
    for policy in (plain, saving):
        policy(packed(documents())).logprobs.sum().backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in saving.named_parameters():
        assert torch.equal(parameter.grad, expected.pop(name)), name
    assert not expected


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_published_parameters_have_hugging_face_names_and_no_tied_head(tmp_path, tie):
    policy = tiny_policy(tmp_path / "m", tie=tie)
    weights = published_parameters(policy)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert set(weights) == set(stored)
    assert ("lm_head.weight" in weights) is not tie
    assert all(torch.equal(weights[name], value) for name, value in stored.items())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        pytest.param(
            MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1),
            "mixture of experts other than qwen3_moe, glm4_moe",
            id="another mixture of experts",
        ),
        pytest.param(
            DeepseekV3Config(**SIZES, n_routed_experts=2, num_experts_per_tok=1),
            "mixture of experts other than qwen3_moe, glm4_moe",
            id="sigmoid scores and latent attention",
        ),
        pytest.param(
            Glm4MoeConfig(**SIZES, n_routed_experts=8, moe_intermediate_size=8, n_group=4, topk_group=1),
            r"groups of experts that do not add up \(n_group 4, topk_group 1\)",
            id="too few experts in the best group",
        ),
        pytest.param(
            Qwen3MoeConfig(**SIZES, num_experts=2, num_experts_per_tok=1, mlp_only_layers=[0]),
            "layers without experts among those with them",
            id="dense layers",
        ),
        pytest.param(
            Qwen3MoeConfig(**SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12),
            r"experts of widths \(16, 12\), accepted are multiples of 8",
            id="narrow experts",
        ),
        pytest.param(
            Phi3Config(**{**SIZES, "pad_token_id": 0}, sliding_window=8), "sliding_attention", id="another with windows"
        ),
        pytest.param(
            VaultGemmaConfig(**SIZES),
            "attn_logit_softcapping, final_logit_softcapping, sliding_attention",
            id="another with caps",
        ),
        pytest.param(
            Gemma2Config(**SIZES, use_bidirectional_attention=True), "attention in both directions", id="both ways"
        ),
        pytest.param(GraniteConfig(**SIZES, logits_scaling=4.0), "differ from transformers' own", id="scaled logits"),
    ],
)
def test_models_that_would_be_computed_wrongly_are_refused(tmp_path, config, named):
    with pytest.raises(ValueError, match=f"not supported yet: .*{named}"):
        check_against_reference(meta_policy(saved(tmp_path / "m", config)).model.config)


DEEP = SIZES | {"num_hidden_layers": 7}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GemmaConfig(**SIZES), id="gemma"),
        pytest.param(Gemma2Config(**DEEP), id="gemma2"),
        # Six windows to a layer without, and the rotations of Gemma-3's longer contexts.
        pytest.param(Gemma3TextConfig(**DEEP, rope_scaling={"rope_type": "linear", "factor": 8.0}), id="gemma3"),
        pytest.param(Gemma3TextConfig(**DEEP, final_logit_softcapping=30.0), id="gemma3, capped"),
        pytest.param(MistralConfig(**SIZES, sliding_window=4096), id="mistral"),
        pytest.param(Qwen2Config(**DEEP, use_sliding_window=True, max_window_layers=3), id="qwen2"),
        pytest.param(Qwen3Config(**DEEP, use_sliding_window=True, max_window_layers=0), id="qwen3"),
    ],
)
def test_other_plain_decoders_work(tmp_path, config):
    policy = meta_policy(saved(tmp_path / "m", config))
    check_against_reference(policy.model.config)
    assert policy.layers is not None


def test_the_small_copy_keeps_a_layer_of_each_type_and_what_windows_and_caps_do():
    small = small_config(Gemma2Config(**DEEP))
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert (small.sliding_window, small.attn_logit_softcapping, small.final_logit_softcapping) == (3, 1.0, 1.0)
    assert small_config(Gemma3TextConfig(**DEEP)).layer_types == ["sliding_attention", "full_attention"]


def test_vision_models_are_refused(tmp_path):
    config = model_config(tmp_path / "m")
    described = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**described, "vision_config": {"depth": 1}}))
    with pytest.raises(ValueError, match="not supported yet: vision"):
        whole_policy(config)


def test_missing_weights_are_refused(tmp_path):
    config = model_config(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=re.escape("lacks weights: model.layers.1.mlp.up_proj.weight (1 in all)")):
        whole_policy(config)


def test_weights_that_are_not_finite_are_named(tmp_path):
    config = model_config(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"not finite: model\.norm\.weight"):
        whole_policy(config)


def test_a_folder_without_a_model_is_refused(tmp_path):
    config = ModelConfig(path=str(tmp_path), dtype="float32", max_model_len=8, renderer="engine")
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        whole_policy(config)


def test_shape_of_the_test_model_has_grouped_heads():
    assert SHAPE.num_heads > SHAPE.num_kv_heads > 1
