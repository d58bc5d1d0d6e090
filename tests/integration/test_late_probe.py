"""A version's probe beside the next step: the same numbers, in every way to train, and never waited for in a circle."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echorl_core.config import LoraConfig
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing import campaign
from echorl_testing.orchestrator.packs import model_config
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import FakeOrchestrator
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.probing_ranks import lived, stepped
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import trainer_config

ADAPTER = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "down_proj"])
CASES = [
    pytest.param(1, 1, {}, id="one micro-batch"),
    pytest.param(2, 1, {"accumulation": "unsharded"}, id="one micro-batch, reduced once"),
    pytest.param(2, 3, {"accumulation": "unsharded"}, id="reduced once"),
    pytest.param(2, 3, {"checkpointing": "full", "lora": ADAPTER}, id="recomputed, an adapter"),
    pytest.param(2, 2, {"context": 2, "accumulation": "unsharded"}, id="shared packs, reduced once"),
    pytest.param(2, 2, {"replicate": 2, "checkpointing": "selective", "tie": True}, id="replicas"),
    pytest.param(2, 2, {"family": "qwen3_moe", "expert": 2}, id="split experts"),
    pytest.param(1, 2, {"compiled": True}, id="compiled"),
]


@pytest.mark.parametrize(("num_ranks", "micro_batches", "options"), campaign.campaign_params("late probes", CASES, 1))
def test_a_probe_beside_a_step_says_what_it_says_before_it_and_changes_nothing(
    tmp_path: Path, num_ranks: int, micro_batches: int, options: dict[str, Any]
) -> None:
    folder = tmp_path / "m"
    model_config(folder, family=options.get("family", "qwen3"), tie=options.get("tie", False))
    sides = [
        on_ranks(num_ranks, partial(stepped, beside=beside, **options), folder, micro_batches)
        for beside in (True, False)
    ]
    for late, plain in zip(*sides, strict=True):
        assert len(late["beside"]) == 2, "once a step"
        assert late["beside"][1] == late["before"] == plain["before"]
        assert late["after"] == plain["after"] != late["before"]
        assert all(np.array_equal(late["weights"][name], value) for name, value in plain["weights"].items())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def orchestrator_of(folder: Path, num_ranks: int) -> FakeOrchestrator:
    run, identity = RunDirectory(folder), RunIdentity("test", RUN_UID, 1)
    prepare(run, identity)
    return FakeOrchestrator(run, identity, steps=5, num_ranks=num_ranks, interval=3)


async def life(orchestrator: FakeOrchestrator, model: Path, *, late_probe_from: int | None) -> list[PolicyAnnouncement]:
    """A run from its begin to its end; what it announced."""
    config = trainer_config(orchestrator.run, model, orchestrator.url).model_dump_json()
    ranks = orchestrator.num_ranks
    ended = await asyncio.to_thread(
        on_ranks, ranks, lived, config, orchestrator.identity, late_probe_from, deadline_s=120
    )
    assert ended == ["finished"] * ranks
    assert [one.step for one in orchestrator.reports] == [1, 2, 3, 4, 5]
    return orchestrator.announcements


async def sealed_on_announcement(orchestrator: FakeOrchestrator) -> None:
    """Seal a batch only when the version that it trains on was announced, as where nothing may be stale."""
    for step in range(orchestrator.steps):
        await orchestrator.until(lambda step=step: f"policy {step}" in orchestrator.events)
        orchestrator.sealed = step + 1


@pytest.mark.parametrize("num_ranks", campaign.campaign_params("ranks that probe late", [1, 2], 1))
async def test_versions_and_probes_are_those_of_a_run_that_probes_at_once(
    tmp_path: Path, model: Path, num_ranks: int
) -> None:
    async with orchestrator_of(tmp_path / "at once", num_ranks) as plain:
        expected = await life(plain, model, late_probe_from=None)
    async with orchestrator_of(tmp_path / "late", num_ranks) as late:
        found = await life(late, model, late_probe_from=1)
        for version in (1, 2, 4):
            assert late.events.index(f"batch {version + 1}") < late.events.index(f"policy {version}"), "it came beside"
        for saved in (3, 5):
            assert f"policy {saved}" in late.events
    async with orchestrator_of(tmp_path / "torn", num_ranks) as torn:
        torn.late_ranks = {num_ranks - 1}
        differing = await life(torn, model, late_probe_from=1)
    async with orchestrator_of(tmp_path / "fresh", num_ranks) as fresh:
        fresh.sealed = 0
        sealing = asyncio.create_task(sealed_on_announcement(fresh))
        waited_for = await life(fresh, model, late_probe_from=1)
        await sealing
    for side in (found, differing, waited_for):
        assert [(one.version, one.probe) for one in side] == [(one.version, one.probe) for one in expected]
    assert late.committed == plain.committed == [3, 5]
