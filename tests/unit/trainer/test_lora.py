"""Adapters: numbers worked out by hand, what trains and what does not, checkpoints, publication, merging."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from echorl_core.adapters import UnknownModule, chosen_modules, linear_layers, tensor_shapes, zero_adapter
from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_testing.orchestrator.packs import packed, tiny_policy
from echorl_testing.trainer.tiny_learner import tiny_config, tiny_learner, tiny_model, train, weights
from echorl_trainer.health import Watch
from echorl_trainer.learner import Learner, build_learner
from echorl_trainer.lora import LoraLinear, attach, draw_adapter, published_parameters
from echorl_trainer.merge import Unmergeable, main, merge
from echorl_trainer.parallel import Ranks
from echorl_trainer.probe import probe_logprobs
from echorl_trainer.publish import Publisher
from echorl_trainer.rank import exit_code
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.state import OtherAdapter, save_state, state_digest
from echorl_trainer.weights import disk_store

LORA = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "down_proj", "model.layers.1.self_attn.v_proj"])
PROBE = [7, 1, 200, 33, 64, 91, 258, 5]
IDENTITY = RunIdentity("test", "uid", 1)


def digest(learner: Learner) -> str:
    return state_digest(learner.state.policy, learner.state.optimizer)


def published(learner: Learner, ranks: Ranks, folder: Path, version: int = 1) -> Path:
    """Publish what the learner holds; the version's folder."""
    store = disk_store(RunDirectory(folder), 1)
    publisher = Publisher(learner.state.policy, ranks, IDENTITY, probe_token_ids=PROBE, store=store, watch=Watch())
    publication = publisher.begin(version)
    assert publication is not None
    publication.result()
    return store.folder(version)


def hand_made() -> LoraLinear:
    """W = [[1, 2], [3, 4]], A = [[1, -1]], B = [[2], [5]], alpha / rank = 3."""
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    adapted = LoraLinear(layer, 1, 3.0)
    adapted.lora_A.weight.data = torch.tensor([[1.0, -1.0]])
    adapted.lora_B.weight.data = torch.tensor([[2.0], [5.0]])
    return adapted


def test_forward_and_gradients_by_hand() -> None:
    """x = (3, 1): W x = (5, 13), A x = 2, so y = (5 + 3 * 4, 13 + 3 * 10)."""
    adapted = hand_made()
    x = torch.tensor([[3.0, 1.0]], requires_grad=True)
    y = adapted(x)
    assert y.tolist() == [[17.0, 43.0]]
    y.backward(torch.tensor([[1.0, 10.0]]))
    # dB = s g (A x)^T, dA = s (B^T g) x^T with B^T g = 52, dx = W^T g + s A^T B^T g.
    assert adapted.lora_B.weight.grad.tolist() == [[6.0], [60.0]]  # type: ignore[union-attr]
    assert adapted.lora_A.weight.grad.tolist() == [[468.0, 156.0]]  # type: ignore[union-attr]
    assert x.grad is not None
    assert x.grad.tolist() == [[31.0 + 156.0, 42.0 - 156.0]]


def test_a_fresh_adapter_changes_nothing_and_is_frozen_around(tmp_path: Path) -> None:
    policy = tiny_policy(tmp_path / "m")
    documents = packed([torch.tensor(PROBE)])
    before = policy(documents).logprobs
    attach(policy, LORA)
    draw_adapter(policy, seed=3)
    assert torch.equal(policy(documents).logprobs, before)
    trained = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    modules = [*(f"model.layers.{i}.{m}" for i in (0, 1) for m in ("self_attn.q_proj", "mlp.down_proj"))]
    modules.append("model.layers.1.self_attn.v_proj")
    assert trained == {f"{module}.lora_{letter}.weight" for module in modules for letter in "AB"}
    start = policy.model.get_submodule("model.layers.0.mlp.down_proj").lora_A.weight.detach()
    assert 0.9 / 8 < float(start.abs().max()) <= 1 / 8, "uniform within 1 / sqrt(64)"


def test_the_start_depends_on_seed_and_name_alone(tmp_path: Path) -> None:
    found = []
    for targets, seed in ((["q_proj"], 3), (["k_proj", "q_proj"], 3), (["q_proj"], 4)):
        policy = tiny_policy(tmp_path / "m")
        attach(policy, LoraConfig(rank=4, alpha=8.0, target_modules=targets))
        draw_adapter(policy, seed=seed)
        found.append(policy.model.get_submodule("model.layers.1.self_attn.q_proj").lora_A.weight)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("target", ["foo", "proj", "lm_head", "embed_tokens", "layers.2.self_attn.q_proj", "norm"])
def test_a_target_that_names_nothing_is_refused_and_the_policy_stays(tmp_path: Path, target: str) -> None:
    policy = tiny_policy(tmp_path / "m")
    lora = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", target])
    with pytest.raises(ValueError, match=rf"model\.lora\.target_modules: found '{target}', accepted are .*down_proj, "):
        attach(policy, lora)
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert policy.adapter is None


def test_the_names_on_disk_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    policy = tiny_policy(tmp_path / "m")
    attach(policy, LORA)
    layers = linear_layers(tmp_path / "m")
    chosen = chosen_modules(layers, LORA.target_modules)
    shapes = {name: tuple(tensor.shape) for name, tensor in published_parameters(policy).items()}
    assert shapes == tensor_shapes({name: layers[name] for name in chosen}, LORA.rank)
    (tmp_path / "zero.safetensors").write_bytes(zero_adapter(shapes, "bfloat16"))
    zeros = load_file(tmp_path / "zero.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in zeros.items()} == shapes
    assert all(tensor.dtype == torch.bfloat16 and not tensor.any() for tensor in zeros.values())
    with pytest.raises(UnknownModule):
        chosen_modules(layers, ["norm"])


@pytest.mark.parametrize("kind", ["adamw", "muon", "signSgd", "sgd"])
def test_only_the_adapter_trains(ranks: Ranks, model: Path, kind: str) -> None:
    optimizer = OptimizerConfig.model_validate({"type": kind, "lr": 1e-2})
    learner = tiny_learner(ranks, model, lora=LORA, optimizer=optimizer)
    before = weights(learner)
    train(learner, 1, 2)
    for name, value in weights(learner).items():
        assert torch.equal(value, before[name]) != (".lora_" in name), name
    held = {parameter for group in learner.state.optimizer.param_groups for parameter in group["params"]}
    assert held == {one for one in learner.state.policy.parameters() if one.requires_grad}


def test_bfloat16_keeps_the_base_in_it_and_the_adapter_in_float32(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    single = tiny_learner(ranks, model, lora=LORA)
    config = tiny_config(model, lora=LORA)
    half = build_learner(
        config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})}), ranks
    )
    train(half, 1, 1)
    for name, parameter in half.state.policy.named_parameters():
        assert parameter.dtype == (torch.float32 if ".lora_" in name else torch.bfloat16)
    full = probe_logprobs(single.state.policy, ranks, PROBE)
    assert max(abs(a - b) for a, b in zip(probe_logprobs(half.state.policy, ranks, PROBE), full, strict=True)) < 0.1
    folder = published(half, ranks, tmp_path)
    assert {tensor.dtype for tensor in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_resumed_adapter_goes_on_bit_for_bit(ranks: Ranks, model: Path, tmp_path: Path, kind: str) -> None:
    optimizer = OptimizerConfig.model_validate({"type": kind, "lr": 1e-3, "schedule": "cosine", "warmup_steps": 2})
    through = tiny_learner(ranks, model, steps=4, lora=LORA, optimizer=optimizer)
    saved = tiny_learner(ranks, model, steps=2, lora=LORA, optimizer=optimizer)
    save_state(saved.state, 2, tmp_path / "checkpoint")
    resumed = tiny_learner(ranks, model, lora=LORA, optimizer=optimizer)
    assert digest(resumed) != digest(saved)
    assert resumed.state.restore(tmp_path / "checkpoint") == 2
    assert digest(resumed) == digest(saved)
    train(resumed, 3, 4)
    assert digest(resumed) == digest(through)
    size = sum(file.stat().st_size for file in (tmp_path / "checkpoint").glob("*.distcp"))
    assert size < sum(file.stat().st_size for file in model.glob("*.safetensors"))


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_taken_over(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    save_state(tiny_learner(ranks, model, steps=1, lora=LORA).state, 1, tmp_path / "adapter")
    save_state(tiny_learner(ranks, model, steps=1).state, 1, tmp_path / "full")
    other = tiny_model(tmp_path / "other", seed=2)
    cases: list[tuple[str, str, Path, LoraConfig | None]] = [
        ("adapter", "rank: found 4, this run has 8", model, LORA.model_copy(update={"rank": 8})),
        ("adapter", "alpha: found 8.0, this run has 4.0", model, LORA.model_copy(update={"alpha": 4.0})),
        ("adapter", "this run has q_proj", model, LORA.model_copy(update={"target_modules": ["q_proj"]})),
        ("adapter", "adapter.base: found ", other, LORA),
        ("adapter", "holds an adapter, this run trains all weights", model, None),
        ("full", "holds all weights, this run trains an adapter", model, LORA),
    ]
    for name, message, folder, lora in cases:
        learner = tiny_learner(ranks, folder, lora=lora)
        before = digest(learner)
        with pytest.raises(OtherAdapter, match=message) as caught:
            learner.state.restore(tmp_path / name)
        assert digest(learner) == before
        assert exit_code(caught.value) == 2


def test_a_published_version_is_the_adapter_in_pefts_format(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    learner = tiny_learner(ranks, model, steps=1, lora=LORA)
    folder = published(learner, ranks, tmp_path)
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    }
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 4, 8, "none")
    assert config["target_modules"] == sorted(LORA.target_modules)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "adapter"
    tensors = load_file(folder / "adapter_model.safetensors")
    held = {name: value for name, value in weights(learner).items() if ".lora_" in name}
    assert {f"base_model.{name}" for name in held} == tensors.keys()
    assert all(torch.equal(tensors[f"base_model.{name}"], value) for name, value in held.items())


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_the_merged_model_computes_what_the_trainer_does(ranks: Ranks, tmp_path: Path, tie: bool) -> None:
    folder = tiny_model(tmp_path / "model", tie=tie)
    fast = OptimizerConfig(lr=3e-2)
    learner = tiny_learner(ranks, folder, steps=3, lora=LORA, optimizer=fast)
    merge(published(learner, ranks, tmp_path), folder, tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        logits = loaded(torch.tensor([PROBE])).logits[0, :-1]
    merged = logits.log_softmax(-1).gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0]
    expected = torch.tensor(probe_logprobs(learner.state.policy, ranks, PROBE), dtype=torch.float32)
    start = torch.tensor(probe_logprobs(tiny_learner(ranks, folder).state.policy, ranks, PROBE), dtype=torch.float32)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-5)
    assert float((expected - start).abs().max()) > 1e-2
    assert (tmp_path / "merged" / "tokenizer.json").is_file()


def test_what_cannot_be_merged_is_named_and_nothing_is_written(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    folder = published(tiny_learner(ranks, model, lora=LORA), ranks, tmp_path)
    wider = tmp_path / "wider"
    write_seeded_model(wider, SHAPES["tiny"], 1)
    with pytest.raises(Unmergeable, match=r"lora_A\.weight: shape \[4, 32\], the model makes it \[4, 128\]"):
        merge(folder, wider, tmp_path / "out")
    with pytest.raises(Unmergeable, match=r"accepted: a folder with adapter_config\.json"):
        merge(model, model, tmp_path / "out")
    assert not list(tmp_path.glob("*out"))
    arguments = ["--adapter", str(folder), "--model", str(model), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert main(arguments) == 2, "the folder is there"


@pytest.mark.parametrize(
    ("setting", "value", "found"),
    [
        ("use_rslora", True, "use_rslora: found true, accepted: false"),
        ("alpha_pattern", {"q_proj": 64}, "alpha_pattern: found 1 entries, accepted: none"),
        ("r", 0, "r: found 0, accepted: at least 1"),
    ],
)
def test_an_adapter_of_another_scale_is_refused(
    ranks: Ranks, model: Path, tmp_path: Path, setting: str, value: object, found: str
) -> None:
    """Others' adapters may scale B A by something else than alpha / rank; merged, nobody would see it."""
    config = published(tiny_learner(ranks, model, lora=LORA), ranks, tmp_path) / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), setting: value}))
    with pytest.raises(Unmergeable) as refused:
        merge(config.parent, model, tmp_path / "out")
    assert found in str(refused.value)


def test_an_adapter_of_another_dtype_is_refused(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    weights = published(tiny_learner(ranks, model, lora=LORA), ranks, tmp_path) / "adapter_model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(Unmergeable, match="dtype: found float16, accepted: float32, bfloat16"):
        merge(weights.parent, model, tmp_path / "out")
    assert not list(tmp_path.glob("*out"))


def test_the_merged_model_has_the_tensors_of_the_loaded_one(ranks: Ranks, tmp_path: Path) -> None:
    """Some models come with the same weights a second time, under names that nothing here loads."""
    model = tiny_model(tmp_path / "model")
    folder = published(tiny_learner(ranks, model, lora=LORA), ranks, tmp_path)
    save_file({"layers.0.attention.wq.weight": torch.ones(4, 4)}, model / "consolidated.safetensors")
    merge(folder, model, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == load_file(model / "model.safetensors").keys()
