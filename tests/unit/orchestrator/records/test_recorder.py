import asyncio
import json
import math
from pathlib import Path

import pytest

from echorl_core.attempts import Policy, Prepared, as_json
from echorl_core.rundir import RunDirectory, write_file
from echorl_core.wire.reports import LogprobGap, StepReport
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.records.recorder import (
    EVALS,
    STEPS,
    UPDATES,
    Recorder,
    chosen,
    recorded_evals,
    step_row,
    train_row,
)
from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.throughput import Throughput
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import eventually, outcome


def ready(reward: float) -> ReadyEpisode:
    return ReadyEpisode(
        outcome=outcome(f"e{reward}", reward=reward),
        group="g",
        ticket=Ticket("terminal", 0, 0, 0),
        advantage=reward,
        verdict=Verdict(("zeroAdvantage",), rl=False),
        version_low=2,
        partial=False,
    )


async def test_a_half_written_row_is_cut_off_and_the_next_one_follows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.open()
    await recorder.append(STEPS, [{"step": 1, "x": math.inf}])
    with (tmp_path / STEPS).open("a") as file:
        file.write('{"step": 2, "ti')
    recorder = Recorder(tmp_path)
    recorder.open()
    await recorder.append(STEPS, [{"step": 2}, {"step": 3}])
    rows = [json.loads(line) for line in (tmp_path / STEPS).read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["x"] is None
    assert all("time" in row for row in rows)
    assert recorder.rows(STEPS) == rows


async def test_rows_for_later_are_written_by_run_or_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.open()
    recorder.later(UPDATES, {"version": 1})
    task = asyncio.create_task(recorder.run())
    await eventually(lambda: recorder.rows(UPDATES), "the row is written")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    recorder.later(UPDATES, {"version": 2})
    await recorder.close()
    assert [row["version"] for row in recorder.rows(UPDATES)] == [1, 2]


async def test_evals_of_every_attempt_are_known(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for attempt, step in ((1, 0), (2, 4)):
        recorder = Recorder(run.records(attempt))
        recorder.open()
        await recorder.append(EVALS, [{"environment": "held-out", "step": step}])
    await recorder.append(EVALS, [{"environment": "held-out", "step": 2, "skipped": "its version is gone"}])
    found = recorded_evals(run)
    assert found.played == {("held-out", 0), ("held-out", 4)}
    assert found.skipped == {("held-out", 2)}


async def test_evals_of_versions_that_are_trained_again_are_due_again(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for attempt, start, steps in ((1, 0, (0, 20, 40)), (2, 20, (40, 60)), (3, 50, ())):
        prepared = Prepared(
            run_uid="u",
            attempt=attempt,
            policy=Policy.AUTO,
            resume_step=start,
            checkpoint=None,
            committed=[],
            skipped=[],
            removed=[],
            kept=[],
        )
        write_file(run.attempt(attempt) / "prepared.json", as_json(prepared))
        recorder = Recorder(run.records(attempt))
        recorder.open()
        await recorder.append(EVALS, [{"environment": "e", "step": step, "reward": 1.0} for step in steps])
        known = {1: {0, 20, 40}, 2: {0, 20, 40, 60}, 3: {0, 20, 40}}[attempt]
        assert recorded_evals(run).played == {("e", step) for step in known}
    (run.records(2) / EVALS).unlink()
    assert recorded_evals(run).played == {("e", 0), ("e", 20)}  # attempt 2 trained version 40 anew


def test_chosen_episodes_span_the_rewards() -> None:
    batch = [ready(reward) for reward in (0.3, 0.9, 0.1, 0.5, 0.7, 0.2)]
    assert [one.outcome.reward for one in chosen(batch)] == [0.1, 0.3, 0.5, 0.9]
    assert len(chosen(batch[:2])) == 2


def test_a_train_row_says_what_became_of_the_episode() -> None:
    row = train_row(4, 1, ready(0.5))
    assert (row["step"], row["staleness"], row["advantage"]) == (4, 1, 0.5)
    assert (row["filters"], row["trains"]) == (["zeroAdvantage"], {"rl": False, "ce": True})
    assert (row["in_batch"], row["branches"]) == (True, 1)
    assert train_row(4, 1, ready(0.5), in_batch=False)["in_batch"] is False


def test_a_step_row_merges_batch_and_report() -> None:
    report = StepReport(
        attempt=1,
        step=3,
        metrics={"loss/rl": 0.5, "env_nll/all": None},
        gap=LogprobGap(tokens=7, max_abs=1e-5, mean_abs=1e-6, over_tolerance=0),
        trained_tokens=100,
        packed_tokens=200,
        seconds={"step": 4.0, "wait_batch": 1.0},
    )
    row = step_row(1, report, {"reward/all/mean": 0.25, "tokens/trained": 99}, {"seconds/engines_idle": 0.5})
    assert row["rate/trained_tokens_per_s"] == 25.0
    assert row["tokens/trained"] == 100
    assert (row["reward/all/mean"], row["loss/rl"], row["gap/tokens"], row["seconds/wait_batch"]) == (0.25, 0.5, 7, 1.0)


def test_pace_by_hand() -> None:
    now = 10.0
    counters, health = Counters(), Health(longest_silence_s=1.0, busy=lambda: False)
    throughput = Throughput(counters, health, clock=lambda: now)
    now, health.idle_s = 14.0, 1.0
    counters.add("tokens/sampled", 200)
    lap = throughput.lap(trained_tokens=80)
    assert lap["rate/sampled_tokens_per_s"] == 50.0
    assert lap["rate/overall_trained_tokens_per_s"] == 20.0
    assert (lap["seconds/since_last_step"], lap["seconds/engines_idle"]) == (4.0, 1.0)
    assert throughput.sampled_tokens_per_s == pytest.approx(50.0)
