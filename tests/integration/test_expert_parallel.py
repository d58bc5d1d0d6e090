"""Ranks that have the experts of a mixture among them train as one rank does that has them all."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_testing import campaign
from echorl_testing.orchestrator.packs import SGD, distance, model_config
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.expert_ranks import multiplied
from echorl_testing.trainer.fake_orchestrator import FakeOrchestrator
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.invariance import train
from echorl_testing.trainer.resume_ranks import resumed, saved
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import Gang, trainer_config
from echorl_trainer.seeded import Family

FAMILY: Family = "qwen3_moe"
SIGMOID: Family = "glm4_moe"
"""With shared experts, and a first layer without any."""
CLIPPED = SGD.model_copy(update={"max_grad_norm": 0.1, "lr": 0.3})
"""Far below every gradient's norm, so that what clipping makes of it is seen."""
ADAMW = OptimizerConfig(type="adamw", lr=1e-2, eps=1e-2)
"""So large an epsilon that what is rounded otherwise is not made larger."""
ADAPTER = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "o_proj"])
MOST = 1e-5
"""Relative, in float32."""

CASES = [
    pytest.param(2, CLIPPED, {"expert": 2}, id="two"),
    pytest.param(2, ADAMW, {"expert": 2}, id="two, adamw"),
    pytest.param(2, CLIPPED, {"expert": 2, "lora": ADAPTER}, id="two, an adapter"),
    pytest.param(4, CLIPPED, {"expert": 4}, id="four"),
    pytest.param(4, CLIPPED, {"expert": 2, "checkpointing": "full"}, id="two groups of two, recomputed"),
    pytest.param(4, ADAMW, {"expert": 2, "checkpointing": "selective"}, id="two groups of two, adamw"),
    pytest.param(4, CLIPPED, {"expert": 2, "replicate": 2, "accumulation": "unsharded"}, id="a replica each"),
    pytest.param(4, CLIPPED, {"expert": 4, "context": 2}, id="four that share packs by twos"),
    pytest.param(2, CLIPPED, {"expert": 2, "family": SIGMOID}, id="two, sigmoid scores"),
    pytest.param(4, ADAMW, {"expert": 2, "family": SIGMOID, "replicate": 2}, id="a replica each, sigmoid scores"),
    pytest.param(
        4, CLIPPED, {"expert": 2, "family": SIGMOID, "context": 4}, id="four that share packs, sigmoid scores"
    ),
]


def compared(left: Any, right: Any) -> float:
    return distance(*({name: torch.from_numpy(value) for name, value in side.items()} for side in (left, right)))


def trained(folder: Path, config: OptimizerConfig, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    return train(folder, config, steps, **options)


@pytest.mark.parametrize(("num_ranks", "config", "options"), campaign.campaign_params("split experts", CASES, 1))
def test_gradient_weights_metrics_and_what_is_published_are_those_of_one_rank(
    tmp_path: Path, num_ranks: int, config: OptimizerConfig, options: dict[str, Any]
) -> None:
    folder = tmp_path / "m"
    model_config(folder, family=options.get("family", FAMILY))
    alone = train(folder, config, 3, lora=options.get("lora"))
    kinds = {key: value for key, value in options.items() if key != "family"}
    ranks = on_ranks(num_ranks, trained, folder, config, 3, kinds)
    for what in ("gradient", "weights", "published", "state"):
        if alone[what]:
            assert compared(ranks[0][what], alone[what]) <= MOST, what
    for rank in ranks:
        assert rank["outcomes"] == ranks[0]["outcomes"]
        assert rank["probe"] == pytest.approx(alone["probe"], abs=1e-5)
    for split, whole in zip(ranks[0]["outcomes"], alone["outcomes"], strict=True):
        # The last ranks are filled up with other tokens, which go to experts as well.
        mine, expected = (
            {name: value for name, value in side[0].items() if not name.startswith("experts/")}
            for side in (split, whole)
        )
        assert mine == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert split[1].tokens == whole[1].tokens
        assert split[2] == whole[2]


REPLAYED = [
    pytest.param(FAMILY, 2, {"expert": 2, "context": 2, "checkpointing": "selective"}, id="two that split and share"),
    pytest.param(FAMILY, 2, {}, id="two"),
    pytest.param(SIGMOID, 4, {"expert": 2, "context": 2, "checkpointing": "full"}, id="four, sigmoid scores"),
]


@pytest.mark.parametrize(("family", "num_ranks", "options"), campaign.campaign_params("replayed routers", REPLAYED, 1))
def test_experts_that_are_given_are_those_of_one_rank(
    tmp_path: Path, family: Family, num_ranks: int, options: dict[str, Any]
) -> None:
    """Some documents in part, one not at all: every rank takes the rows of its own tokens."""
    folder = tmp_path / "m"
    model_config(folder, family=family)
    given = {"replayed": True}
    alone, free = train(folder, CLIPPED, 2, **given), train(folder, CLIPPED, 2)
    assert compared(alone["gradient"], free["gradient"]) > 0.01
    for rank in on_ranks(num_ranks, trained, folder, CLIPPED, 2, options | given):
        assert compared(rank["gradient"], alone["gradient"]) <= MOST
        assert compared(rank["weights"], alone["weights"]) <= MOST
        metrics = rank["outcomes"][0][0]
        assert metrics["loss/total"] == pytest.approx(alone["outcomes"][0][0]["loss/total"], rel=1e-4)
        if "context" in options and num_ranks == 2:
            # No rank is filled up with other tokens: every number is that of one rank.
            assert metrics == pytest.approx(alone["outcomes"][0][0], rel=1e-4, abs=1e-6)


def test_loads_of_experts_are_counted_over_all_ranks_and_versions_are_the_same_bytes(tmp_path: Path) -> None:
    """Without a dummy, for two ranks that share packs; and before anything was trained."""
    folder = tmp_path / "m"
    model_config(folder, family=FAMILY)
    alone = train(folder, SGD, 1)
    for rank in on_ranks(2, trained, folder, SGD, 1, {"expert": 2, "context": 2}):
        assert rank["outcomes"][0][0] == pytest.approx(alone["outcomes"][0][0], rel=1e-4, abs=1e-6)
    before, start = train(folder, SGD, 0), on_ranks(2, trained, folder, SGD, 0, {"expert": 2})[0]
    assert list(start["published"]) == list(before["published"])
    assert all(value.tobytes() == before["published"][name].tobytes() for name, value in start["published"].items())


def test_rows_come_back_from_where_their_experts_are() -> None:
    """Also where no token chose a rank's experts: it has nothing to multiply, and its part of the gradient is 0."""
    for rank in on_ranks(2, multiplied):
        for found in rank:
            assert found == {"rows": True, "hidden": True, "weights": True, "stacks": True}


RESUMED = [
    ("adamw", OptimizerConfig(lr=1e-3), None),
    ("int8", OptimizerConfig(lr=1e-3, state_dtype="int8"), None),
    ("bfloat16, host memory", OptimizerConfig(lr=1e-3, state_dtype="bfloat16", cpu_offload=True), None),
    ("adapter", OptimizerConfig(lr=1e-3), ADAPTER),
]
MOVES = [
    # Ranks, replicas and ranks that split experts: of those that write, of those that read.
    pytest.param(FAMILY, (2, 1, 2), (1, 1, 1), id="two that split, one"),
    pytest.param(FAMILY, (1, 1, 1), (2, 1, 2), id="one, two that split"),
    pytest.param(FAMILY, (2, 1, 1), (4, 1, 2), id="two, two groups"),
    pytest.param(FAMILY, (4, 1, 2), (4, 2, 2), id="two groups, a replica each"),
    pytest.param(FAMILY, (4, 1, 4), (2, 1, 2), id="four that split, two"),
    pytest.param(SIGMOID, (2, 1, 2), (1, 1, 1), id="two that split, one, sigmoid scores"),
    pytest.param(SIGMOID, (1, 1, 1), (4, 2, 2), id="one, a replica each, sigmoid scores"),
]


@pytest.mark.parametrize(("family", "writers", "readers"), campaign.campaign_params("split experts resumed", MOVES, 1))
def test_a_checkpoint_is_read_to_the_last_bit_by_ranks_that_split_experts_otherwise(
    tmp_path: Path, family: Family, writers: tuple[int, int, int], readers: tuple[int, int, int]
) -> None:
    model = tiny_model(tmp_path / "model", family=family)
    written, *others = on_ranks(writers[0], saved, model, tmp_path, RESUMED, *writers[1:])
    assert all(other == written for other in others)
    found = on_ranks(readers[0], resumed, model, tmp_path, RESUMED, *readers[1:])
    assert [digests for digests, _ in found] == [written] * readers[0]
    assert all(norms == found[0][1] for _, norms in found), "ranks go on together"
    assert all(math.isfinite(norm) and norm > 0 for norm in found[0][1].values())


@campaign.ALL
async def test_processes_split_experts_and_a_checkpoint_goes_on_without(tmp_path: Path) -> None:
    model, steps = tiny_model(tmp_path / "tiny", family=FAMILY), 4
    reports: dict[str, list[Any]] = {}
    for name, expert, last in (("split", 2, 2), ("split", 1, steps), ("alone", 1, steps)):
        run = RunDirectory(tmp_path / name)
        attempt = run.last_attempt() + 1
        identity = RunIdentity("test", RUN_UID, attempt)
        prepare(run, identity)
        # Ranks that share packs have the same batches as one has, so that reports can be compared.
        async with FakeOrchestrator(run, identity, steps=last, num_ranks=expert, context=expert) as orchestrator:
            own = {"context": expert, "expert": expert, "optimizer": OptimizerConfig(lr=1e-3)}
            settings = trainer_config(run, model, orchestrator.url, **own)
            gang = Gang(tmp_path / f"{name}_{attempt}", settings, identity, expert)
            try:
                gang.start("echorl_trainer")
                assert await gang.ended() == [0] * expert, gang.log()
            finally:
                await gang.stop()
            reports.setdefault(name, []).extend(orchestrator.reports)
    assert [one.step for one in reports["split"]] == [one.step for one in reports["alone"]] == [1, 2, 3, 4]
    for split, alone in zip(reports["split"], reports["alone"], strict=True):
        assert split.metrics == pytest.approx(alone.metrics, rel=1e-4, abs=1e-6)
