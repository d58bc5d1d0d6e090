import json
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.spot.pauses import longest_pause, new_steps, pauses_after
from echorl_core.rundir import RunDirectory


def test_steps_that_are_made_again_are_not_new(tmp_path: Path) -> None:
    attempts = {1: [(10.0, 1), (12.0, 2), (14.0, 3)], 2: [(30.0, 2), (31.0, 3), (33.5, 4)]}
    for attempt, steps in attempts.items():
        folder = tmp_path / "records" / f"attempt_{attempt}"
        folder.mkdir(parents=True)
        rows = [{"time": datetime.fromtimestamp(at, UTC).isoformat(), "step": step} for at, step in steps]
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert new_steps(RunDirectory(tmp_path)) == [10.0, 12.0, 14.0, 33.5]


def test_the_longest_pause_may_begin_after_a_step_that_was_under_way_and_end_after_the_window() -> None:
    made = [10.0, 12.0, 14.0, 33.5, 34.0]
    assert longest_pause(made, 11.0, 20.0) == 19.5
    assert longest_pause(made, 11.0, 13.0) == 2.0
    assert longest_pause(made, 34.0, 60.0) == 0.0


def test_a_pause_is_the_last_loss_before_it() -> None:
    made = [10.0, 12.0, 14.0, 33.5, 34.0, 60.0]
    assert pauses_after([("a", 11.0), ("b", 13.0), ("a", 33.6)], made, 20.0) == {"a": [2.0, 26.0], "b": [19.5]}
    assert pauses_after([], made, 20.0) == {}
