"""Steps whose rewards taught nothing, counted over reports."""

from echorl_orchestrator.status.progress import RunProgress


def test_steps_without_a_reward_that_teaches_are_counted_in_a_row() -> None:
    progress = RunProgress({}, {})
    told = [progress.steps_without_rl]
    for share in (0.0, 0.0, 0.25, 0.0, None):
        progress.step({"batch/rl_share": share})
        told.append(progress.steps_without_rl)
    assert told == [None, 1, 2, 0, 1, None]


def test_a_process_that_begins_anew_counts_on_from_the_newest_row() -> None:
    assert RunProgress({"batch/rl_share": 0.0}, {}).steps_without_rl == 1
