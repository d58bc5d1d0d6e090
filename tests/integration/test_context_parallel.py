"""Ranks that share packs train as one rank does that has them to itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from echorl_core.config import HookConfig, LoraConfig, LossConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.tokens import read_trained
from echorl_testing import campaign
from echorl_testing.orchestrator.packs import SGD, distance, model_config
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import FakeOrchestrator
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import LENGTHS, by_loss, train
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import Gang, trainer_config
from echorl_trainer.seeded import Family

ADAPTER = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "down_proj"])


def compared(left: Any, right: Any) -> float:
    return distance(*({name: torch.from_numpy(value) for name, value in side.items()} for side in (left, right)))


CASES = [
    pytest.param("qwen3", 2, 1, 2, {}, id="two share"),
    # Two heads of keys and values for four ranks; 46 tokens do not divide by four.
    pytest.param("qwen3", 4, 1, 4, {}, id="four share, more than key heads"),
    pytest.param("qwen3", 4, 1, 2, {}, id="two groups of two"),
    pytest.param("qwen3", 4, 2, 2, {"accumulation": "unsharded"}, id="a replica each, reduced once"),
    pytest.param("qwen3", 2, 1, 2, {"lora": ADAPTER}, id="an adapter"),
    pytest.param("qwen3_moe", 4, 1, 4, {}, id="experts"),
    pytest.param("glm4_moe", 2, 1, 2, {}, id="experts of sigmoid scores"),
    pytest.param("gemma2", 2, 1, 2, {"lora": ADAPTER}, id="windows and caps, an adapter"),
    pytest.param("gemma3_text", 4, 1, 4, {}, id="windows"),
]


@pytest.mark.parametrize(
    ("family", "num_ranks", "replicate", "context", "more"), campaign.campaign_params("shared packs", CASES, 1)
)
def test_gradient_weights_metrics_and_what_is_published_are_those_of_one_rank(
    tmp_path: Path, family: Family, num_ranks: int, replicate: int, context: int, more: dict[str, Any]
) -> None:
    folder = tmp_path / "m"
    model_config(folder, family=family)
    lora, accumulation = more.get("lora"), more.get("accumulation", "sharded")
    alone = train(folder, SGD, 3, lora=lora)
    ranks = on_ranks(num_ranks, train, folder, SGD, 3, replicate, "cpu", lora, context, accumulation)
    # Of two batches the second one is filled up with a dummy.
    filled = LENGTHS[-1] if num_ranks > context else 0
    for what in ("gradient", "weights", "published"):
        assert compared(ranks[0][what], alone[what]) <= 1e-5, what
    for rank in ranks:
        assert rank["outcomes"] == ranks[0]["outcomes"]
        assert rank["probe"] == pytest.approx(alone["probe"], abs=1e-5)
    for shared, whole in zip(ranks[0]["outcomes"], alone["outcomes"], strict=True):
        loads = {name for name in whole[0] if name.startswith("experts/") and filled}
        mine, expected = ({n: v for n, v in side[0].items() if n not in loads} for side in (shared, whole))
        assert mine == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert shared[1].tokens == whole[1].tokens
        assert shared[1].over_tolerance == whole[1].over_tolerance
        assert (shared[2], shared[3]) == (whole[2], whole[3] + filled)


def test_every_loss_has_the_gradient_of_one_rank(tmp_path: Path) -> None:
    """Also one that sees whole sequences, whose tokens two ranks have."""
    own = HookConfig(import_path="echorl_testing.trainer.own_losses:sequence_ratio")
    losses = [LossConfig(type=kind) for kind in ("dppo", "ipo", "grpo", "cispo", "reinforce", "opd")]
    losses += [LossConfig(type="custom", hook=own), None]
    alone = by_loss(tmp_path / "m", losses)
    for rank in on_ranks(2, by_loss, tmp_path / "m", losses, 2):
        for config, mine, expected in zip(losses, rank, alone, strict=True):
            assert compared(mine, expected) <= 1e-5, config and config.type


async def test_processes_share_batches_and_a_checkpoint_that_others_resume(tmp_path: Path) -> None:
    """Two processes that share packs, then, from their checkpoint, one process with packs of its own."""
    model, steps = tiny_model(tmp_path / "tiny"), 4
    reports: dict[str, list[Any]] = {}
    for name, context, last in (("shared", 2, 2), ("shared", 1, steps), ("alone", 1, steps)):
        run = RunDirectory(tmp_path / name)
        attempt = run.last_attempt() + 1
        identity = RunIdentity("test", RUN_UID, attempt)
        prepare(run, identity)
        async with FakeOrchestrator(run, identity, steps=last, num_ranks=context, context=context) as orchestrator:
            own = {"context": context, "optimizer": OptimizerConfig(lr=1e-3), "token_export_every": 2}
            settings = trainer_config(run, model, orchestrator.url, **own)
            gang = Gang(tmp_path / f"{name}_{attempt}", settings, identity, context)
            try:
                gang.start("echorl_trainer")
                assert await gang.ended() == [0] * context, gang.log()
            finally:
                await gang.stop()
            assert {rank for _, rank in orchestrator.pulls} == set(range(context))
            reports.setdefault(name, []).extend(orchestrator.reports)
    assert [one.step for one in reports["shared"]] == [one.step for one in reports["alone"]] == [1, 2, 3, 4]
    for shared, alone in zip(reports["shared"], reports["alone"], strict=True):
        assert shared.metrics == pytest.approx(alone.metrics, rel=1e-4, abs=1e-6)
        assert (shared.trained_tokens, shared.packed_tokens) == (alone.trained_tokens, alone.packed_tokens)
    exported = [tmp_path / name / "tokens" / "attempt_1" for name in ("shared", "alone")]
    assert [file.name for file in exported[0].iterdir()] == ["step_000002.rank_0.jsonl"]
    both = [read_trained(folder / "step_000002.rank_0.jsonl") for folder in exported]
    for mine, expected in zip(*both, strict=True):
        assert mine.sample_id == expected.sample_id
        for column in ("trainer_logprobs", "entropy", "ratio"):
            found, whole = (np.array(getattr(one, column), float) for one in (mine, expected))
            np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)
