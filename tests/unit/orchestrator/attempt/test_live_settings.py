import asyncio
from pathlib import Path
from typing import Any

import pytest

from echorl_core.live import LiveReply, LiveSettings
from echorl_orchestrator.attempt.live_settings import AttemptSettings, LiveRefused
from echorl_testing.manifests.role_config import orchestrator_config


@pytest.fixture
def live(tmp_path: Path) -> AttemptSettings:
    return loaded(tmp_path)


def loaded(root: Path, **fields: Any) -> AttemptSettings:
    attempt = root / "attempts" / "1"
    attempt.mkdir(parents=True, exist_ok=True)
    live = AttemptSettings(orchestrator_config(root, **fields), attempt)
    live.load()
    return live


def settings(generation: int, **fields: Any) -> LiveSettings:
    return LiveSettings(generation=generation, **fields)


async def test_settings_wait_for_the_boundary_between_two_batches(live: AttemptSettings) -> None:
    changes = []
    live.call_on_change(lambda: changes.append(live.waiting))
    assert await live.accept(settings(3, max_steps=20)) == LiveReply(generation=3, in_effect=False)
    assert (live.config.max_steps, live.generation, changes) == (10, 0, [True])
    assert live.adopt()
    assert not live.adopt()
    assert (live.config.max_steps, live.last, live.generation) == (20, 20, 3)


async def test_a_message_is_the_whole_truth(live: AttemptSettings) -> None:
    await live.accept(settings(1, max_steps=20))
    live.adopt()
    await live.accept(settings(2, eval_intervals={"held-out": 2}))
    live.adopt()
    assert (live.config.max_steps, live.config.evals[0].interval) == (10, 2)


async def test_the_same_generation_again_does_nothing(live: AttemptSettings) -> None:
    await live.accept(settings(1, max_steps=20))
    live.adopt()
    changes = []
    live.call_on_change(lambda: changes.append(1))
    assert await live.accept(settings(1, max_steps=20)) == LiveReply(generation=1, in_effect=True)
    assert not live.waiting
    assert changes == []


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (settings(4, max_steps=21), 409, "generation: found 4, and other settings of this run came before"),
        (settings(3), 409, "generation: found 3, and generation 4 of this run came before"),
        (settings(5, eval_intervals={"x": 1, "y": 2}), 400, "eval_intervals.x: .*; eval_intervals.y: "),
    ],
)
async def test_refusals(live: AttemptSettings, sent: LiveSettings, status: int, message: str) -> None:
    await live.accept(settings(4, max_steps=20))
    live.adopt()
    with pytest.raises(LiveRefused, match=message) as caught:
        await live.accept(sent)
    assert caught.value.status == status
    assert not live.waiting
    assert live.config.max_steps == 20


async def test_nothing_is_taken_in_once_the_run_is_over(live: AttemptSettings, tmp_path: Path) -> None:
    live.close("the run is over: it ended at step 10")
    with pytest.raises(LiveRefused, match="it ended at step 10") as caught:
        await live.accept(settings(1, max_steps=20))
    assert caught.value.status == 409
    assert loaded(tmp_path).generation == 0


async def test_a_restarted_role_begins_with_what_was_accepted(live: AttemptSettings, tmp_path: Path) -> None:
    await live.accept(settings(2, max_steps=20))
    again = loaded(tmp_path)
    assert (again.generation, again.config.max_steps, again.last, again.waiting) == (2, 20, 20, False)
    assert await again.accept(settings(2, max_steps=20)) == LiveReply(generation=2, in_effect=True)


async def test_what_no_longer_fits_is_left_out(live: AttemptSettings, tmp_path: Path) -> None:
    await live.accept(settings(2, max_steps=20, eval_intervals={"held-out": 2}))
    again = loaded(tmp_path, evals=[])
    assert (again.generation, again.config.max_steps) == (0, 10)
    (tmp_path / "attempts/1/live.json").write_text("{")
    assert loaded(tmp_path).generation == 0


async def test_two_at_once_end_with_the_later_generation(live: AttemptSettings, tmp_path: Path) -> None:
    answers = await asyncio.gather(
        *(live.accept(settings(number, max_steps=number)) for number in (5, 6, 4)), return_exceptions=True
    )
    assert isinstance(answers[2], LiveRefused)
    live.adopt()
    assert live.config.max_steps == loaded(tmp_path).config.max_steps == 6


async def test_a_waiter_wakes(live: AttemptSettings) -> None:
    waiter = asyncio.create_task(live.changed())
    await live.accept(settings(1))
    async with asyncio.timeout(10):
        await waiter
