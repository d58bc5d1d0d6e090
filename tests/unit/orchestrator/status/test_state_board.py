import asyncio
import math
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.run_state import RunState
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.state_board import RunStanding, StateBoard, waiting_for


def standing(**fields: Any) -> RunStanding:
    defaults: dict[str, Any] = {
        "next_step": 3,
        "max_steps": 10,
        "trained": 2,
        "start_step": 0,
        "dispatch_version": 2,
        "engines": 1,
        "ready": 3,
        "per_batch": 16,
        "in_flight": 13,
        "evals": [],
        "checkpoints": {},
        "num_ranks": 2,
        "notice": None,
        "no_room": None,
        "failure": None,
    }
    return RunStanding(**{**defaults, **fields})


STOPPED = StopNotice(reason="stopped", step=2, checkpoint=True)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"trained": None, "start_step": 4}, "the trainer to load and announce version 4"),
        ({"dispatch_version": -1, "engines": 0}, "an engine to hold version 2 (none found yet)"),
        ({}, "episodes of batch 3, which the trainer waits for: 3 of 16 are ready, 13 in flight"),
        (
            {"next_step": 4, "in_flight": 0},
            "the trainer to train step 3: batch 4 needs a newer policy than version 2",
        ),
        (
            {"next_step": 5, "ready": 16, "in_flight": 0},
            "the trainer to train step 3: enough episodes are ready for batch 5, which is sealed when the trainer is "
            "about to ask for it",
        ),
        ({"next_step": 4}, "the trainer to train step 3; episodes of batch 4 are played"),
        ({"next_step": 11, "trained": 9}, "the trainer to train step 10 of 10; every batch is sealed"),
        (
            {"next_step": 11, "trained": 10, "checkpoints": {10: 1}},
            "checkpoint 10: 1 of 2 trainer ranks have saved their parts",
        ),
        ({"next_step": 11, "trained": 10, "evals": ["held-out"]}, "evals after the last step: held-out"),
        ({"notice": STOPPED, "checkpoints": {2: 0}}, "checkpoint 2: 0 of 2 trainer ranks have saved their parts"),
        ({"notice": STOPPED}, "trainer ranks to end: stopped at step 2"),
        ({"no_room": "batch 3 cannot be written: x"}, "room on the run's volume: batch 3 cannot be written: x"),
        ({"failure": "64 episodes failed"}, "nothing: the run failed: 64 episodes failed"),
    ],
)
def test_what_the_run_waits_for(fields: dict[str, Any], sentence: str) -> None:
    assert waiting_for(standing(**fields)) == sentence


def state(**fields: Any) -> RunState:
    return RunState(**{"uid": "u", "attempt": 1, "phase": Phase.RUNNING, **fields})


async def test_it_says_how_long_ago_the_run_moved() -> None:
    """So that who asks for the first time knows too, and for who waits it is no change."""
    content: dict[str, Any] = {"step": 1, "reward": 0.1}
    now = 100.0
    board = StateBoard(lambda: state(**content), clock=lambda: now)

    async def after(seconds: float, **changes: Any) -> tuple[int, float]:
        nonlocal now
        now += seconds
        content.update(changes)
        await board.refresh()
        told = board.snapshot()
        return told.revision - first, told.unmoved_s or 0.0

    first = board.snapshot().revision
    assert await after(5.0) == (0, 5.0)
    assert await after(5.0, reward=0.2) == (1, 10.0)
    assert await after(5.0, step=2) == (2, 0.0)
    assert await after(7.0) == (2, 7.0)
    assert await after(7.0, phase=Phase.SUSPENDED) == (3, 0.0)


async def test_the_revision_changes_exactly_when_the_content_does() -> None:
    content: dict[str, Any] = {"step": 1, "reward": math.nan}
    board = StateBoard(lambda: state(**content), clock=lambda: 0.0)
    first = board.snapshot()
    assert first.reward is None
    await board.refresh()
    assert board.snapshot() == first
    content["step"] = 2
    await board.refresh()
    assert board.snapshot() == state(revision=first.revision + 1, unmoved_s=0.0, step=2)


async def test_a_reader_waits_for_what_it_has_not_seen() -> None:
    content = {"step": 1}
    board = StateBoard(lambda: state(**content))
    seen = board.snapshot().revision
    assert (await board.wait(None, 10)).step == 1
    assert (await board.wait(seen - 5, 10)).step == 1
    assert (await board.wait(seen, 0.0)).revision == seen
    running = asyncio.create_task(board.run())
    waiting = asyncio.create_task(board.wait(seen, 10))
    await asyncio.sleep(0)
    content["step"] = 2
    board.soon()
    assert (await waiting).step == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_health_is_progress_while_there_is_work() -> None:
    busy = True
    health = Health(longest_silence_s=10.0, busy=lambda: busy)
    assert health.problem() is None
    health._last -= 11
    assert "none has ended for 11 s" in (health.problem() or "")
    health.beat()
    assert health.problem() is None
    health._last -= 11
    busy = False
    health.tick(0.5, health._looked + 0.5)
    assert health.problem() is None
    assert health.idle_s == 0.5


def test_a_blocked_loop_is_not_healthy() -> None:
    health = Health(longest_silence_s=10.0, busy=lambda: True)
    health.tick(7.5, health._looked + 7.5)
    assert health.problem() == "the event loop was blocked for 7.0 s"
    health.tick(0.5, health._looked + 0.5)
    assert health.problem() is None
    assert health.max_lag_s == 7.0
