"""Routers that take an engine's choices: their numbers by hand, transformers' own with the same choices, refusals."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from echorl_core.routing import RouterShape, router_shape
from echorl_core.start_checks import replay_problems
from echorl_core.wire.batch import MicroBatch
from echorl_testing.orchestrator.packs import (
    denominators,
    distance,
    document,
    joined,
    learner,
    model_config,
    packed,
    rank_batch,
    routed,
    whole_policy,
)
from echorl_trainer.batches import ScoredBatch, score_batch
from echorl_trainer.routers import NOT_GIVEN, Router, SigmoidRouter, routers

EACH = pytest.mark.parametrize("folder", ["qwen3_moe", "glm4_moe"], indirect=True)
LENGTHS = [9, 14, 5]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "m"
    model_config(found, family=getattr(request, "param", "qwen3_moe"))
    return found


def shape_of(folder: Path) -> RouterShape:
    found = router_shape(folder)
    assert found is not None
    return found


def softmax_router() -> Router:
    """Three experts, of which a token takes two; an input's numbers are the logits."""
    router = object.__new__(Qwen3MoeTopKRouter)
    torch.nn.Module.__init__(router)
    router.top_k, router.norm_topk_prob = 2, True
    router.weight = torch.nn.Parameter(torch.eye(3))
    return Router(router)


def test_weights_and_gradients_are_of_the_given_experts_scores() -> None:
    """Odds 2 : 4 : 1. Its own choice is experts 1 and 0; given are 0 and 2, then nothing, then its own turned round."""
    router = softmax_router()
    hidden = torch.tensor([[2.0, 4.0, 1.0]]).log().repeat(3, 1).requires_grad_()
    router.given = torch.tensor([[0, 2], [NOT_GIVEN, NOT_GIVEN], [0, 1]])
    _, weights, chosen = router(hidden)
    assert chosen.tolist() == [[0, 2], [1, 0], [0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[2 / 3, 1 / 3], [4 / 6, 2 / 6], [2 / 6, 4 / 6]]))
    # d w0 / d logits = w0 (1 - w0) of expert 0, - w0 w2 of expert 2; expert 1 takes no part.
    weights[0, 0].backward()
    torch.testing.assert_close(hidden.grad[0], torch.tensor([2 / 9, 0.0, -2 / 9]))
    assert router.load[:3].tolist() == [3, 2, 1]
    assert router.load[-3:].tolist() == [3, 2, 1]


def test_given_experts_know_no_bias_and_no_groups() -> None:
    """Groups {0, 1} and {2, 3}; its own choice is within one, and by the bias. Weights are of sigmoids alone."""
    config = Glm4MoeConfig(
        hidden_size=4, norm_topk_prob=True, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    theirs = Glm4MoeTopkRouter(config)
    torch.nn.init.eye_(theirs.weight)
    theirs.e_score_correction_bias.copy_(torch.tensor([3.0, 3.0, 0.0, 0.0]))
    router = SigmoidRouter(theirs)
    hidden = torch.tensor([[0.0, -1.0, 1.0, 2.0]])
    assert sorted(router(hidden)[2][0].tolist()) == [0, 1]
    router.given = torch.tensor([[3, 0]])
    _, weights, chosen = router(hidden)
    assert chosen.tolist() == [[3, 0]]
    scores = hidden[0].double().sigmoid()[[3, 0]]
    torch.testing.assert_close(weights[0].double(), 2.5 * scores / scores.sum(), rtol=1e-6, atol=0)


@contextmanager
def choosing(model: torch.nn.Module, choices: Tensor) -> Iterator[None]:
    """transformers' own routers with another top-k: ``choices`` [T, layers, k] of the one document that comes."""
    by_layer = iter(choices.unbind(dim=1))
    topk = torch.topk

    class Found(tuple[Tensor, Tensor]):
        values = property(lambda self: self[0])
        indices = property(lambda self: self[1])

    def given(scores: Tensor, k: int, dim: int = -1, **_: object) -> object:
        if k != choices.shape[-1] or scores.shape != (len(choices), shape.experts):
            return topk(scores, k, dim=dim)
        chosen = next(by_layer)
        return Found((scores.gather(1, chosen), chosen))

    shape = RouterShape(choices.shape[1], 0, next(_expert_counts(model)), choices.shape[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", given)
        yield


def _expert_counts(model: torch.nn.Module) -> Iterator[int]:
    for module in model.modules():
        if isinstance(module, Qwen3MoeTopKRouter | Glm4MoeTopkRouter):
            yield len(module.weight)


def scored(micro: MicroBatch, shape: RouterShape | None) -> ScoredBatch:
    sources = [(name, "") for name in sorted(set(micro.environments))]
    return score_batch(micro, sources=sources, version=0, vocab_size=265, device=torch.device("cpu"), routing=shape)


@EACH
def test_logprobs_and_gradients_are_transformers_own_with_that_top_k(folder: Path) -> None:
    """All tokens of packed documents but the last of each are given, as an engine has them."""
    shape = shape_of(folder)
    parts = [routed(document(seed, length), shape, length) for seed, length in enumerate(LENGTHS, start=1)]
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    policy = whole_policy(model_config(folder))
    documents = [torch.from_numpy(part.token_ids).long() for part in parts]
    given = scored(joined(parts), shape).tokens.experts
    assert given is not None
    mine = policy(replace(packed(documents), experts=given)).logprobs
    expected = []
    for ids, choices in zip(documents, given.long().split(LENGTHS), strict=True):
        with choosing(model, choices):
            logits = model(ids[None]).logits[0, :-1]
        expected.append(logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0])
    theirs = torch.cat(expected)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert (policy(packed(documents)).logprobs - theirs).abs().max() > 0.01
    weights = torch.randn(len(mine), generator=torch.Generator().manual_seed(0))
    policy.zero_grad()
    (policy(replace(packed(documents), experts=given)).logprobs * weights).sum().backward()
    (theirs * weights).sum().backward()
    gradients = [{name: parameter.grad for name, parameter in one.named_parameters()} for one in (policy.model, model)]
    assert distance(*gradients) <= 1e-5
    assert any(gradients[0][name].abs().max() > 0 for name in gradients[0] if name.endswith("gate.weight"))


@EACH
def test_its_own_choices_given_back_change_nothing(folder: Path) -> None:
    parts = [document(seed, length) for seed, length in enumerate(LENGTHS, start=1)]
    policy = whole_policy(model_config(folder))
    ids = [torch.from_numpy(part.token_ids).long() for part in parts]
    chosen: list[Tensor] = []
    for router in routers(policy):
        router.register_forward_hook(lambda _module, _inputs, outputs: chosen.append(outputs[2]))
    free = policy(packed(ids)).logprobs
    own = torch.stack(chosen, dim=1)
    assert torch.equal(policy(replace(packed(ids), experts=own)).logprobs, free)
    assert all(router.load[-2:].tolist() == [sum(LENGTHS), 0] for router in routers(policy))
    assert torch.equal(policy(packed(ids)).logprobs, free)
    assert all(router.load[-2:].tolist() == [0, 0] for router in routers(policy))


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_a_step_counts_what_was_used_whatever_is_recomputed(folder: Path, mode: str) -> None:
    """A document whole, one in part, and one of which nothing was told; and the gradient is one, however it is kept."""
    shape = shape_of(folder)
    parts = [document(seed, length) for seed, length in enumerate(LENGTHS, start=1)]
    given = [routed(parts[0], shape, 9), routed(parts[1], shape, 4), parts[2]]
    batch = rank_batch([joined(given[:2]), given[2]], denominators(given))
    with learner(folder, checkpointing=mode) as one:
        found = one.runner.run(batch)
        gradient = one.gradient
    assert found.metrics["experts/replayed"] == pytest.approx(13 / 28)
    assert 0.5 < (found.metrics["experts/replay_differs"] or 0) <= 1
    with learner(folder) as other:
        other.runner.run(batch)
        assert distance(gradient, other.gradient) == 0
    with learner(folder) as free:
        free.runner.run(rank_batch([joined(parts[:2]), parts[2]], denominators(parts)))
        assert distance(gradient, free.gradient) > 0.01


def test_only_the_tokens_that_were_told_of_are_given(folder: Path) -> None:
    shape = shape_of(folder)
    parts = [routed(document(1, 4), shape, 2), document(2, 3), routed(document(3, 5), shape, 4)]
    found = scored(joined(parts), shape).tokens.experts
    assert found is not None
    told = (found != NOT_GIVEN).all(dim=-1).all(dim=-1)
    assert told.tolist() == [True] * 2 + [False] * 2 + [False] * 3 + [True] * 4 + [False]
    expected = np.concatenate([part.experts for part in parts if part.experts is not None])
    assert found[told].flatten().tolist() == expected.tolist()


def test_more_than_256_experts_take_two_bytes() -> None:
    shape = RouterShape(layers=1, dense_layers=0, experts=300, top_k=2)
    assert (shape.dtype, RouterShape(1, 0, 256, 2).dtype) == (np.uint16, np.uint8)
    micro = msgspec.structs.replace(document(1, 3), experts=np.array([299, 0], np.uint16), routed_tokens=[1])
    found = scored(micro, shape).tokens.experts
    assert found is not None
    assert found.tolist() == [[[299, 0]], [[NOT_GIVEN] * 2], [[NOT_GIVEN] * 2]]
    highest = msgspec.structs.replace(micro, experts=np.array([255, 0], np.uint8))
    assert scored(highest, RouterShape(1, 0, 256, 2)).tokens.experts.tolist()[0] == [[255, 0]]


@pytest.mark.parametrize(
    ("experts", "tokens", "message"),
    [
        ([0, 1, 2, 8], [1], "found expert 8, accepted are 0 to 7"),
        ([0, 1, 2, 2], [1], "found an expert twice among a token's 2"),
        ([0, 1, 2], [1], "found 3 numbers of 1 tokens, accepted are 4 of each"),
        ([0, 1, 2, 3], [4], "found experts of 4 tokens"),
        ([0, 1, 2, 3], [1, 0], "found experts of"),
        ([0, 1, 2, 3], [-1], "found experts of"),
    ],
)
def test_experts_that_no_router_chose_are_refused(
    folder: Path, experts: list[int], tokens: list[int], message: str
) -> None:
    micro = msgspec.structs.replace(document(1, 3), experts=np.array(experts, np.uint8), routed_tokens=tokens)
    expectation = pytest.raises(ValueError, match=message) if tokens != [4] else pytest.raises(ValueError, match="e1/0")
    with expectation:
        scored(micro, shape_of(folder))
    with pytest.raises(ValueError, match="accepted are a mixture's"):
        scored(micro, None)


def test_a_start_without_experts_is_refused_by_name(tmp_path: Path) -> None:
    for family, shape in (
        ("qwen3_moe", RouterShape(2, 0, 8, 2)),
        ("glm4_moe", RouterShape(1, 1, 8, 2)),
        ("qwen3", None),
    ):
        model_config(tmp_path / family, family=family)
        assert router_shape(tmp_path / family) == shape
        refused = [str(problem) for problem in replay_problems(tmp_path / family)]
        message = "spec.trainer.routerReplay: found true; accepted: false: the model has no experts"
        assert refused == ([] if shape else [message])
