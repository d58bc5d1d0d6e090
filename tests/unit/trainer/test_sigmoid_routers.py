"""Routers that choose by sigmoid scores and a bias: their numbers, and what becomes of the bias, which never trains."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, config_json, linear_layers
from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.wire.weights import TensorInfo, WeightManifest
from echorl_testing import campaign
from echorl_testing.orchestrator.packs import (
    denominators,
    distance,
    document,
    learner,
    model_config,
    packed,
    rank_batch,
    whole_policy,
)
from echorl_testing.trainer.tiny_learner import alone, tiny_learner, tiny_model
from echorl_trainer.copier import Copier
from echorl_trainer.experts import stored_buffers
from echorl_trainer.host_files import file_layouts
from echorl_trainer.lora import published_parameters
from echorl_trainer.merge import merge
from echorl_trainer.routers import SigmoidRouter
from echorl_trainer.snapshots import Snapshots
from echorl_trainer.state import save_state
from echorl_trainer.weights import complete_model
from echorl_vllm.validation import ModelForm, TensorForm, WeightsRefusedError, check_form, model_form

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
LORA = LoraConfig(rank=2, alpha=4.0, target_modules=["q_proj"])
DOCUMENTS = [document(seed, length) for seed, length in enumerate([9, 14, 5, 20], start=1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "m"
    model_config(found, family="glm4_moe")
    return found


def router(**settings: object) -> Glm4MoeTopkRouter:
    found = Glm4MoeTopkRouter(Glm4MoeConfig(hidden_size=4, norm_topk_prob=True, **settings))
    torch.nn.init.eye_(found.weight)
    return found


def sigmoid(value: float) -> float:
    return float(1 / (1 + torch.tensor(-value, dtype=torch.float64).exp()))


@pytest.mark.parametrize(
    ("bias", "chosen"),
    [([0.0, 0.0, 0.0, 0.0], (2, 3)), ([1.0, 0.0, 0.0, 0.0], (0, 1)), ([1.0, 0.0, 0.0, 1.0], (2, 3))],
)
def test_the_bias_chooses_a_group_and_weighs_nothing(bias: list[float], chosen: tuple[int, int]) -> None:
    """Two groups of two. Scores of logits 2, -1, 1, 0 are 0.881, 0.269, 0.731, 0.5: groups have 1.15 and 1.23."""
    theirs = router(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, routed_scaling_factor=2.5)
    theirs.e_score_correction_bias.copy_(torch.tensor(bias))
    mine = SigmoidRouter(theirs)
    logits = (2.0, -1.0, 1.0, 0.0)
    _, weights, found = mine(torch.tensor([[logits]]))
    scores = [sigmoid(value) for value in logits]
    expected = {one: 2.5 * scores[one] / sum(scores[each] for each in chosen) for one in chosen}
    assert dict(zip(found[0].tolist(), weights[0].tolist(), strict=True)) == pytest.approx(expected, rel=1e-6)
    assert mine.load[:4].tolist() == [float(expert in chosen) for expert in range(4)]
    shares = torch.tensor(scores, dtype=torch.float64) / sum(scores)
    assert mine.load[4:6].tolist() == pytest.approx([float(-(shares * shares.log()).sum()), 1.0], rel=1e-6)


@given(
    seed=st.integers(0, 2**31),
    sizes=st.sampled_from([(4, 1, 1, 3), (6, 3, 1, 2), (8, 2, 1, 4), (8, 4, 2, 3), (8, 4, 4, 8), (12, 3, 2, 5)]),
    normed=st.booleans(),
)
def test_choices_weights_and_gradients_are_those_of_transformers(
    seed: int, sizes: tuple[int, int, int, int], normed: bool
) -> None:
    experts, groups, best, top = sizes
    theirs = router(n_routed_experts=experts, n_group=groups, topk_group=best, num_experts_per_tok=top)
    theirs.norm_topk_prob, theirs.routed_scaling_factor = normed, 1.7
    generator = torch.Generator().manual_seed(seed)
    theirs.weight.data.copy_(torch.randn(experts, 4, generator=generator))
    theirs.e_score_correction_bias.copy_(0.5 * torch.randn(experts, generator=generator))
    hidden, factors = (torch.randn(7, width, generator=generator) for width in (4, experts))
    results = []
    for one in (theirs, SigmoidRouter(theirs)):
        theirs.weight.grad = None
        logits, weights, chosen = one(hidden)
        dense = torch.zeros(7, experts).scatter(1, chosen, weights)
        (dense * factors).sum().backward()
        assert theirs.weight.grad is not None
        results.append((logits, dense.detach(), theirs.weight.grad.clone()))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_is_published_in_half_precision_has_the_bias_as_the_folder_has_it(folder: Path, tmp_path: Path) -> None:
    """It lies in a file of its own, so that files hold one dtype; the model that it makes is the policy."""
    bias = load_file(folder / "model.safetensors")[BIAS]
    assert not torch.equal(bias, bias.bfloat16().float())
    with learner(folder, compute_dtype=torch.bfloat16) as one:
        one.runner.run(rank_batch(DOCUMENTS, denominators(DOCUMENTS)))
        parameters = published_parameters(one.policy)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        layouts = file_layouts(shapes, torch.bfloat16, single_name="model.safetensors")
        snapshot = Snapshots(layouts, {}, pinned=False).take(1, timeout_s=0, check=lambda: None)
        Copier(layouts, one.ranks.device).copy(parameters, snapshot)
        master = one.weights()
    assert [(layout.dtype, set(layout.shapes) == {BIAS}) for layout in layouts] == [
        (torch.bfloat16, False),
        (torch.float32, True),
    ]
    snapshot.write(tmp_path)
    complete_model(layouts, folder, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.state_dict()[BIAS], bias)
    head = loaded.state_dict()["lm_head.weight"]
    assert torch.equal(head, master["model.lm_head.weight"].bfloat16())


def test_a_checkpoint_has_the_bias(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "m", family="glm4_moe")
    with alone() as ranks:
        first = tiny_learner(ranks, model, steps=1, optimizer=OptimizerConfig(lr=1e-3))
        save_state(first.state, 1, tmp_path / "saved")
        again = tiny_learner(ranks, model, optimizer=OptimizerConfig(lr=1e-3))
        expected, found = (stored_buffers(one.state.policy) for one in (first, again))
        assert len(expected) == 1
        for bias in found.values():
            bias.zero_()
        again.state.restore(tmp_path / "saved")
        assert all(torch.equal(found[name], bias) for name, bias in expected.items())


def test_a_base_with_another_bias_is_another_base(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[BIAS] += 0.01
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    one, other = (whole_policy(model_config(each)) for each in (folder, tmp_path))
    assert one.fingerprint != other.fingerprint


def test_a_merged_model_in_half_precision_keeps_its_bias(folder: Path, tmp_path: Path) -> None:
    with learner(folder, lora=LORA) as one:
        adapter = {name: value.to_local().bfloat16() for name, value in published_parameters(one.policy).items()}
    (tmp_path / "adapter").mkdir()
    save_file(adapter, tmp_path / "adapter" / ADAPTER_WEIGHTS)
    (tmp_path / "adapter" / ADAPTER_CONFIG).write_bytes(config_json(LORA))
    merge(tmp_path / "adapter", folder, tmp_path / "merged")
    stored, loaded = (
        load_file(folder / "model.safetensors"),
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged"),
    )
    assert torch.equal(loaded.state_dict()[BIAS], stored[BIAS])
    assert torch.equal(loaded.state_dict()["lm_head.weight"], stored["lm_head.weight"].bfloat16())


@campaign.ALL
@pytest.mark.timeout(900)
def test_layers_that_are_compiled_and_recomputed_have_the_gradient_of_others(tmp_path: Path) -> None:
    """A minute of the compiler's. With torch 2.11 it failed where a router scattered into a tensor of ones."""
    batch = rank_batch(DOCUMENTS, denominators(DOCUMENTS))
    found = []
    for options in ({}, {"compiled": True, "checkpointing": "selective"}):
        with learner(tmp_path / "m", family="glm4_moe", compute_dtype=torch.bfloat16, **options) as one:
            one.runner.run(batch)
            found.append(one.gradient)
    assert distance(found[1], found[0]) <= 0.06


def with_predictors(folder: Path, target: Path) -> dict[str, Tensor]:
    """The model with one layer more that predicts further tokens, as the hub's folders have it; its own tensors."""
    own = load_file(folder / "model.safetensors")
    more = {name.replace(".1.", ".2.", 1): one.clone() for name, one in own.items() if ".layers.1." in name}
    more["model.layers.2.eh_proj.weight"] = torch.zeros(32, 64)
    target.mkdir()
    (target / "config.json").write_text((folder / "config.json").read_text())
    save_file(own | more, target / "model.safetensors", metadata={"format": "pt"})
    return own


def test_layers_that_predict_further_tokens_are_left_out_everywhere(folder: Path, tmp_path: Path) -> None:
    own = with_predictors(folder, tmp_path / "m")
    policy = whole_policy(model_config(tmp_path / "m"))
    assert published_parameters(policy).keys() == own.keys()
    ids = torch.arange(9)
    with torch.no_grad():
        scores = [each(packed([ids])).logprobs for each in (policy, whole_policy(model_config(folder)))]
    assert torch.equal(*scores)
    form = model_form(tmp_path / "m", tied=False)
    assert form.tensors.keys() == own.keys()
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert linear_layers(tmp_path / "m").keys() == {
        f"model.layers.{layer}.self_attn.{kind}" for layer in (0, 1) for kind in kinds
    }


@pytest.mark.parametrize(("stored", "refused"), [("F32", ["BF16"]), ("BF16", [])])
def test_an_engine_in_half_precision_takes_the_bias_in_float32(stored: str, refused: list[str]) -> None:
    """Whatever its folder has it in; other tensors it takes as its folder has them or as it computes."""
    form = ModelForm({BIAS: TensorForm((8,), stored)}, engine_dtype="BF16")
    for dtype in ("F32", "BF16"):
        told = TensorInfo(dtype=dtype, shape=[8], file="a.safetensors", xxh3="")
        manifest = WeightManifest(run_uid="u", attempt=1, version=1, files=[], tensors={BIAS: told})
        if dtype in refused:
            with pytest.raises(WeightsRefusedError, match=f"dtype {dtype}, accepted: F32"):
                check_form(manifest, form)
        else:
            check_form(manifest, form)
