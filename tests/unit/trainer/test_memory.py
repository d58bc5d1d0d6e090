"""Copies of the state in memory bring back every bit, and are refused where they do not fit."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from echorl_core.config import LoraConfig, MemoryConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import RankMemory, Restarted
from echorl_core.rundir import RunDirectory
from echorl_core.wire.reports import LogprobGap, StepReport
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_testing.trainer.tiny_learner import tiny_learner, train
from echorl_trainer.health import Health
from echorl_trainer.learner import Learner
from echorl_trainer.link import Link
from echorl_trainer.memory import Held, LimitTooLow, MemoryCopies, Unfinished
from echorl_trainer.parallel import Ranks
from echorl_trainer.rank import request_headers
from echorl_trainer.state import Unreadable, state_digest

IDENTITY = RunIdentity("test", RUN_UID, 1)
ADAM = OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)
HALF_MUON = OptimizerConfig(type="muon", lr=1e-3, weight_decay=0.1, state_dtype="bfloat16", cpu_offload=True)
LORA = LoraConfig(rank=4, alpha=8.0, target_modules=["q_proj", "up_proj"])
NOTHING = Unfinished(None, save=False, last=False)
RESTARTED = Restarted(1, "killed")


@pytest.fixture
def memory() -> Iterator[RankMemory]:
    memory = RankMemory(0)
    yield memory
    memory.close()


@pytest.fixture
async def orchestrator(tmp_path: Path) -> AsyncIterator[FakeOrchestrator]:
    async with FakeOrchestrator(RunDirectory(tmp_path / "run"), IDENTITY, steps=9) as running:
        yield running


def copies_of(learner: Learner, memory: RankMemory, optimizer: OptimizerConfig, limit: int = 2**30) -> MemoryCopies:
    config = MemoryConfig(every_steps=2, limit_bytes=limit)
    health = Health(step_timeout_s=60)
    return MemoryCopies(
        learner.state, memory.slots, config, optimizer, deadline_s=60, health=health, mirror=memory.mirror
    )


async def resumed(copies: MemoryCopies, orchestrator: FakeOrchestrator) -> Held:
    watch = Health(step_timeout_s=60).watch
    link = Link(orchestrator.url, request_headers(IDENTITY, TOKEN), deadline_s=60, watch=watch)
    return await asyncio.wait_for(asyncio.to_thread(copies.resume, RESTARTED, link, orchestrator.run, 1), 120)


def digest(learner: Learner) -> str:
    return state_digest(learner.state.policy, learner.state.optimizer)


@pytest.mark.parametrize(
    ("optimizer", "lora"),
    [(ADAM, None), (ADAM.model_copy(update={"state_dtype": "int8"}), None), (HALF_MUON, None), (ADAM, LORA)],
    ids=["adamw", "adamw in 8 bits", "muon in bfloat16, host memory", "an adapter"],
)
async def test_a_later_process_goes_on_bit_for_bit(
    ranks: Ranks,
    model: Path,
    memory: RankMemory,
    orchestrator: FakeOrchestrator,
    optimizer: OptimizerConfig,
    lora: LoraConfig | None,
) -> None:
    through = tiny_learner(ranks, model, optimizer=optimizer, lora=lora)
    copies = copies_of(through, memory, optimizer)
    gap = LogprobGap(tokens=0, max_abs=None, mean_abs=None, over_tolerance=0)
    report = StepReport(attempt=1, step=3, metrics={}, gap=gap, trained_tokens=1, packed_tokens=1, seconds={})
    for step in (1, 2, 3):
        train(through, step, step)
        copies.begin(step, Unfinished(report if step == 3 else None, save=step == 3, last=False))
    train(through, 4, 5)
    copies.wait()
    assert memory.steps == {2, 3}
    after = tiny_learner(ranks, model, optimizer=optimizer, lora=lora)
    found = await resumed(copies_of(after, memory, optimizer), orchestrator)
    assert found == Held(3, Unfinished(report, save=True, last=False), is_saved=False)
    assert [(one.step, one.count, one.reason) for one in orchestrator.restarts] == [(3, 1, "killed")]
    assert memory.steps == {3}, "what not all hold must not be taken for newer"
    train(after, 4, 5)
    assert digest(after) == digest(through)
    assert after.state.optimizer.param_groups[0]["lr"] == through.state.optimizer.param_groups[0]["lr"]


async def test_a_step_whose_successors_batch_is_gone_is_not_gone_on_from(
    ranks: Ranks, model: Path, memory: RankMemory, orchestrator: FakeOrchestrator
) -> None:
    learner = tiny_learner(ranks, model, steps=2, optimizer=ADAM)
    copies = copies_of(learner, memory, ADAM)
    copies.begin(2, NOTHING)
    copies.wait()
    orchestrator.commit_nothing(4)
    with pytest.raises(Unreadable, match="step 2 is held in memory; checkpoint 4 has released"):
        await resumed(copies, orchestrator)
    assert memory.steps == set()
    with pytest.raises(Unreadable, match="no step is held in memory by all ranks"):
        await resumed(copies, orchestrator)


def test_a_limit_below_two_copies_is_refused_with_the_arithmetic_before_anything_is_copied(
    ranks: Ranks, model: Path, memory: RankMemory
) -> None:
    learner = tiny_learner(ranks, model)
    weights = sum(one.numel() for one in learner.state.policy.parameters())
    needed = 2 * 3 * 4 * weights
    words = f"found {needed - 1} bytes, accepted are at least {needed}: two copies of {needed // 2} bytes"
    with pytest.raises(LimitTooLow, match=words):
        copies_of(learner, memory, ADAM, needed - 1)
    half = ADAM.model_copy(update={"state_dtype": "bfloat16"})
    copies_of(learner, memory, half, needed - 1)


async def test_the_step_that_goes_to_the_neighbour_and_the_newest_there_are_left_alone_and_gone_on_from(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator
) -> None:
    memory = RankMemory(0, mirrored=True)
    learner, note = tiny_learner(ranks, model, optimizer=ADAM), memory.mirror
    assert note is not None
    copies = copies_of(learner, memory, ADAM)
    held = []
    for step in range(1, 10):
        train(learner, step, step)
        copies.begin(step, NOTHING)
        copies.wait()
        held.append((note.wanted, memory.steps))
        if step in (4, 7):
            note.note(note.wanted)  # it has come there
    assert held[3:] == [
        (1, {1, 3, 4}),
        (5, {1, 4, 5}),
        (5, {1, 5, 6}),
        (5, {1, 5, 7}),
        (8, {1, 5, 8}),
        (8, {5, 8, 9}),
    ]
    after = tiny_learner(ranks, model, optimizer=ADAM)
    memory.slots[[slot.step for slot in memory.slots].index(9)].clear()  # as if not all held it
    copies = copies_of(after, memory, ADAM)
    assert (await resumed(copies, orchestrator)).step == 8
    assert (note.wanted, memory.steps) == (8, {5, 8})
    train(after, 9, 9)
    assert digest(after) == digest(learner)
    memory.close()


def test_a_limit_below_five_copies_is_refused_where_a_neighbour_holds_two(ranks: Ranks, model: Path) -> None:
    learner, memory = tiny_learner(ranks, model), RankMemory(0, mirrored=True)
    needed = 5 * 3 * 4 * sum(one.numel() for one in learner.state.policy.parameters())
    with pytest.raises(LimitTooLow, match=f"at least {needed}: with mirror five copies"):
        copies_of(learner, memory, ADAM, needed - 1)
    memory.close()


def test_steps_that_are_saved_are_copied_whatever_their_number(ranks: Ranks, model: Path, memory: RankMemory) -> None:
    copies = copies_of(tiny_learner(ranks, model), memory, ADAM)
    assert [copies.is_due(step, save=save) for step, save in ((1, False), (2, False), (3, True))] == [False, True, True]
