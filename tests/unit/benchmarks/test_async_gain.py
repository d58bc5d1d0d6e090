"""Asynchronous against synchronous runs: what is read of their steps."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.async_gain.__main__ import measured, table
from benchmarks.async_gain.letters import Letters, build
from echorl_cli.__main__ import app_for
from echorl_orchestrator.types import Action


def step(since: float, backward: float, idle: float) -> dict[str, float]:
    return {
        "seconds/since_last_step": since,
        "seconds/forward_backward": backward,
        "seconds/optimizer": 0.5,
        "seconds/engines_idle": idle,
    }


def test_steps_that_have_settled_count_alone() -> None:
    steps = [step(99, 0, 99)] * 3 + [step(4, 1.5, 4), step(6, 2.5, 0)]
    # 10 s of steps: 2 and 3 s of training, 4 of 20 seconds of two engines idle.
    assert measured(steps, engines=2) == {"step_s": 5.0, "trainer_busy": 0.5, "engines_busy": 0.8}


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="found 3 steps, accepted are more than 3"):
        measured([step(1, 0, 0)] * 3, engines=1)


def test_the_gain_is_of_medians() -> None:
    shares = {"trainer_busy": 0.5, "engines_busy": 0.5}
    seconds = {"sync": (10.0, 12.0, 90.0), "async": (8.0, 6.0, 1.0)}
    rows = [{"side": side, "step_s": one, **shares} for side, each in seconds.items() for one in each]
    assert table(rows).splitlines()[2:] == [
        "| sync | 12.00 | 1.00 | 50% | 50% |",
        "| async | 6.00 | 2.00 | 50% | 50% |",
    ]


def test_the_manifest_for_two_gpus_is_valid_and_half_of_its_answers_are_right() -> None:
    manifest = Path(__file__).parents[3] / "benchmarks" / "async_gain" / "two-gpus.yaml"
    arguments = ["validate", str(manifest)]
    told = CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")
    assert told.exit_code == 0, told.output
    task = build(length=7, num_tasks=1).tasks[0]
    (message,) = Letters().reset(task, seed=0, episode_id="e").messages
    assert len(message["content"]) == 7
    assert [Letters().step(Action("x" * length)).reward for length in range(4)] == [1.0, 0.0, 1.0, 0.0]
