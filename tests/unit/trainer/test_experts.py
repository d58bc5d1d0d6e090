"""Mixtures of experts: numbers of transformers' own model, routers by hand, what is published, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, config_json
from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.start_checks import adapter_problems, expert_problems
from echorl_testing.orchestrator.packs import (
    denominators,
    distance,
    document,
    joined,
    learner,
    model_config,
    packed,
    rank_batch,
    whole_policy,
)
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import plain, train
from echorl_trainer.copier import Copier
from echorl_trainer.experts import refuse_undivided
from echorl_trainer.host_files import file_layouts
from echorl_trainer.lora import attach, published_parameters
from echorl_trainer.merge import merge as merge_adapter
from echorl_trainer.optimizer import build_optimizer
from echorl_trainer.parallel import connect
from echorl_trainer.routers import Router
from echorl_trainer.snapshots import Snapshots
from echorl_trainer.token_metrics import TokenMetrics, merge, summarize
from echorl_trainer.weights import complete_model

FAMILY = "qwen3_moe"
EACH = pytest.mark.parametrize("folder", [FAMILY, "glm4_moe"], indirect=True)
DOCUMENTS = [document(seed, length) for seed, length in enumerate([9, 14, 5, 20], start=1)]
LORA = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "o_proj"])


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "m"
    model_config(found, family=getattr(request, "param", FAMILY))
    return found


def reference(folder: Path) -> torch.nn.Module:
    """transformers' own model with its loop over experts."""
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


def logprobs(model: torch.nn.Module, ids: Tensor) -> Tensor:
    return model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]


@EACH
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "not normed"])
def test_packed_logprobs_and_gradients_are_those_of_each_document_alone(
    folder: Path, tmp_path: Path, normed: bool
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").symlink_to(folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**described, "norm_topk_prob": normed}))
    documents = [torch.from_numpy(one.token_ids).long() for one in DOCUMENTS]
    policy, model = whole_policy(model_config(tmp_path / "m")), reference(tmp_path / "m")
    mine, expected = policy(packed(documents)).logprobs, torch.cat([logprobs(model, ids) for ids in documents])
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(len(mine), generator=torch.Generator().manual_seed(0))
    (mine * weights).sum().backward()
    (expected * weights).sum().backward()
    gradients = [{name: parameter.grad for name, parameter in one.named_parameters()} for one in (policy.model, model)]
    assert gradients[0].keys() == gradients[1].keys()
    assert distance(*gradients) <= 1e-5
    for name, gradient in gradients[0].items():
        assert distance({name: gradient}, {name: gradients[1][name]}) <= 1e-4, name


@EACH
def test_two_ranks_train_as_one(folder: Path) -> None:
    """Gradient, weights after three steps, probe and what is published; ranks are filled up with other tokens."""
    config = OptimizerConfig(type="sgd", lr=1e-2, weight_decay=0.0, max_grad_norm=1e9)
    one = train(folder, config, 3)
    two = on_ranks(2, train, folder, config, 3)
    for what in ("gradient", "weights", "published"):
        left, right = ({name: torch.from_numpy(value) for name, value in side[what].items()} for side in (two[0], one))
        assert distance(left, right) <= 1e-5, what
    assert two[0]["probe"] == pytest.approx(one["probe"], abs=1e-5)
    start = plain({name: one.detach() for name, one in whole_policy(model_config(folder)).named_parameters()})
    assert any(name.endswith("experts.gate_up_proj") for name in start)
    for name, value in one["weights"].items():
        assert abs(value - start[name]).max() > 0, f"{name} does not train"
    assert two[0]["outcomes"][0][0]["experts/load_max"] == two[1]["outcomes"][0][0]["experts/load_max"]


def test_a_router_chooses_by_a_product_in_float32() -> None:
    """In bfloat16 both logits were 256; the second is 256.5. Of three, each token takes two."""
    router = object.__new__(Qwen3MoeTopKRouter)
    torch.nn.Module.__init__(router)
    router.top_k, router.norm_topk_prob = 2, True
    router.weight = torch.nn.Parameter(torch.tensor([[256.0, 0.0], [256.0, 0.5], [0.0, 0.0]]).bfloat16())
    mine = Router(router)
    hidden = torch.tensor([[1.0, 1.0], [0.0, 0.0], [-1.0, 0.0]]).bfloat16()
    logits, weights, chosen = mine(hidden)
    assert logits.dtype == torch.float32
    assert logits.tolist() == [[256.0, 256.5, 0.0], [0.0, 0.0, 0.0], [-256.0, -256.0, 0.0]]
    assert chosen[0].tolist() == [1, 0]
    odds = torch.tensor(0.5).exp()
    assert weights.dtype == torch.bfloat16
    assert weights[0].tolist() == (torch.stack([odds, torch.tensor(1.0)]) / (1 + odds)).bfloat16().tolist()
    assert mine.load[:3].sum() == 6
    assert mine.load[-3:].tolist() == [3, 0, 0]
    # Nats: of odds e^0.5 to 1, of three alike, of one alone.
    share = float(odds / (1 + odds))
    two = -(share * torch.tensor(share).log() + (1 - share) * torch.tensor(1 - share).log())
    assert float(mine.load[3]) == pytest.approx(float(two) + float(torch.tensor(3.0).log()), abs=1e-5)


def test_loads_are_means_over_layers_and_sums_over_micro_batches_and_ranks() -> None:
    """Two layers of four experts, two micro-batches, two ranks; 20 choices of 10 tokens in all."""
    first, second = (TokenMetrics.empty([], torch.device("cpu")) for _ in range(2))
    assert "experts/load_max" not in summarize(merge([first, second]))[0]
    first.add_routing(torch.tensor([[2.0, 2, 0, 0, 2.0, 2, 1, 1], [1.0, 1, 1, 1, 1.0, 2, 1, 0]], dtype=torch.float64))
    first.add_routing(torch.tensor([[4.0, 2, 1, 1, 4.0, 4, 0, 0], [2.0, 2, 2, 2, 1.0, 4, 0, 0]], dtype=torch.float64))
    second.add_routing(torch.tensor([[4.0, 2, 1, 1, 4.0, 4, 3, 1], [2.0, 2, 2, 2, 3.0, 4, 3, 0]], dtype=torch.float64))
    found, _ = summarize(merge([first.cpu(), second.cpu()]))
    assert {name: value for name, value in found.items() if name.startswith("experts/")} == {
        "experts/load_max": pytest.approx((10 / 5 + 5 / 5) / 2),
        "experts/load_max_layer": pytest.approx(10 / 5),
        "experts/load_min": pytest.approx((2 / 5 + 5 / 5) / 2),
        "experts/router_entropy": pytest.approx((10 / 10 + 5 / 10) / 2),
        "experts/replayed": pytest.approx(4 / 10),
        "experts/replay_differs": pytest.approx((2 / 4 + 0 / 4) / 2),
    }


def test_a_step_counts_every_token_once_whatever_is_recomputed(folder: Path) -> None:
    """Against transformers' router logits of each document."""
    model = reference(folder)
    counts, entropy = torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for one in DOCUMENTS:
        ids = torch.from_numpy(one.token_ids).long()
        with torch.no_grad():
            logits = model(ids[None], output_router_logits=True).router_logits
        for layer, values in enumerate(logits):
            probabilities = values.double().softmax(-1)
            counts[layer] += torch.bincount(values.topk(2).indices.flatten(), minlength=8)
            entropy[layer] += torch.distributions.Categorical(probabilities).entropy().sum()
    tokens = sum(len(one.token_ids) for one in DOCUMENTS)
    expected = (counts.amax(1) / counts.mean(1)).mean(), (entropy / tokens).mean()
    batch = rank_batch([joined(DOCUMENTS[:3]), DOCUMENTS[3]], denominators(DOCUMENTS))
    for mode in ("none", "full", "selective"):
        with learner(folder, checkpointing=mode) as one:
            found = one.runner.run(batch).metrics
        assert found["experts/load_max"] == pytest.approx(float(expected[0]))
        assert found["experts/router_entropy"] == pytest.approx(float(expected[1]), rel=1e-5)


@EACH
def test_an_export_has_the_names_of_a_folder_and_the_logits_of_the_policy(folder: Path, tmp_path: Path) -> None:
    """Several files, whose bounds lie within the matrices of one stack."""
    with learner(folder) as one:
        one.runner.run(rank_batch(DOCUMENTS, denominators(DOCUMENTS)))
        parameters = published_parameters(one.policy)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        layouts = file_layouts(shapes, torch.float32, single_name="model.safetensors", file_bytes=10_000)
        snapshot = Snapshots(layouts, {}, pinned=False).take(1, timeout_s=0, check=lambda: None)
        Copier(layouts, one.ranks.device).copy(parameters, snapshot)
        (tmp_path / "out").mkdir()
        snapshot.write(tmp_path / "out")
        documents = [torch.from_numpy(each.token_ids).long() for each in DOCUMENTS]
        with torch.no_grad():
            expected = one.policy(packed(documents)).logprobs
    assert len(layouts) > 4
    complete_model(layouts, folder, tmp_path / "out")
    stored = load_file(folder / "model.safetensors")
    assert shapes == {name: tuple(value.shape) for name, value in stored.items()}
    model = reference(tmp_path / "out")
    with torch.no_grad():
        found = torch.cat([logprobs(model, ids) for ids in documents])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - logprobs_of_start(folder, documents)).abs().max() > 1e-3


@torch.no_grad()
def logprobs_of_start(folder: Path, documents: list[Tensor]) -> Tensor:
    model = reference(folder)
    return torch.cat([logprobs(model, ids) for ids in documents])


def test_an_expert_that_is_missing_is_refused(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.experts.5.up_proj.weight"]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = r"lacks weights: model\.layers\.1\.mlp\.experts\.gate_up_proj is made of 8 of .*gate.*, 7 of .*up_proj"
    with pytest.raises(ValueError, match=message):
        whole_policy(model_config(tmp_path))


@EACH
@pytest.mark.parametrize("target", ["gate_proj", "down_proj", "gate", "model.layers.1.mlp.experts.3.up_proj"])
def test_adapters_are_for_attention_alone(folder: Path, target: str) -> None:
    with pytest.raises(ValueError, match=f"found '{target}', accepted are names of linear layers: k_proj, o_proj, "):
        attach(whole_policy(model_config(folder)), LORA.model_copy(update={"target_modules": [target]}))
    (problem,) = adapter_problems(folder, [target])
    assert problem.accepted.startswith("names of linear layers: k_proj, o_proj, q_proj, v_proj, or")


@EACH
def test_an_adapter_on_attention_trains_and_is_merged_beside_the_experts(folder: Path, tmp_path: Path) -> None:
    documents = [torch.from_numpy(each.token_ids).long() for each in DOCUMENTS]
    with learner(folder, lora=LORA) as one:
        one.runner.run(rank_batch(DOCUMENTS, denominators(DOCUMENTS)))
        assert len(one.gradient) == 2 * 2 * 2
        assert all(".self_attn." in name and ".lora_" in name for name in one.gradient)
        adapter = {name: value.to_local().detach() for name, value in published_parameters(one.policy).items()}
        with torch.no_grad():
            expected = one.policy(packed(documents)).logprobs
    (tmp_path / "adapter").mkdir()
    save_file(adapter, tmp_path / "adapter" / ADAPTER_WEIGHTS)
    (tmp_path / "adapter" / ADAPTER_CONFIG).write_bytes(config_json(LORA))
    merge_adapter(tmp_path / "adapter", folder, tmp_path / "merged")
    model = reference(tmp_path / "merged")
    with torch.no_grad():
        found = torch.cat([logprobs(model, ids) for ids in documents])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - logprobs_of_start(folder, documents)).abs().max() > 1e-4


def test_compiled_layers_in_float32_are_refused(folder: Path) -> None:
    with (
        pytest.raises(ValueError, match="compile: found true, accepted for a mixture of experts in float32: false"),
        learner(folder, compiled=True),
    ):
        pass


def test_muon_is_refused(folder: Path) -> None:
    policy = whole_policy(model_config(folder))
    with pytest.raises(ValueError, match=r"optimizer\.type: found muon, accepted for mixtures of experts: adamw, "):
        build_optimizer(policy, OptimizerConfig(type="muon"))


def test_experts_that_do_not_divide_are_refused(folder: Path, tmp_path: Path) -> None:
    config = whole_policy(model_config(folder)).model.config
    dense = whole_policy(model_config(tmp_path / "dense")).model.config
    for size in (1, 2, 8):
        refuse_undivided(config, size)
    refuse_undivided(dense, 1)
    with pytest.raises(ValueError, match="expert: found 3, accepted is a divisor of the model's 8 experts"):
        refuse_undivided(config, 3)
    with pytest.raises(ValueError, match="compile: found true, accepted where experts are split: false"):
        refuse_undivided(config, 2, compiled=True)
    with pytest.raises(ValueError, match="expert: found 2, accepted is 1: the model has no experts"):
        refuse_undivided(dense, 2)
    with pytest.raises(ValueError, match="expert: found 2, accepted is a divisor of the 1 ranks of a replica"):
        connect(device="cpu", expert=2)


def test_a_start_is_refused_where_experts_do_not_divide(folder: Path, tmp_path: Path) -> None:
    assert [list(expert_problems(folder, size)) for size in (1, 2, 4, 8)] == [[], [], [], []]
    sigmoid = tmp_path / "sigmoid"
    model_config(sigmoid, family="glm4_moe")
    assert [len(list(expert_problems(sigmoid, size))) for size in (1, 2, 3)] == [0, 0, 1]
    (problem,) = expert_problems(folder, 3)
    assert str(problem) == "spec.trainer.parallel.expert: found 3; accepted: a divisor of the model's 8 experts"
    model_config(tmp_path / "dense")
    assert list(expert_problems(tmp_path / "dense", 1)) == []
    (problem,) = expert_problems(tmp_path / "dense", 2)
    assert str(problem) == "spec.trainer.parallel.expert: found 2; accepted: 1: the model has no experts"
