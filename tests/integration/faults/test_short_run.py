"""A short run with a few faults of the campaigns, others for each commit; what is asked of those is asked of it."""

import os
import signal
from pathlib import Path

import pytest

from echorl_core.names import ExitCode
from echorl_testing import campaign
from echorl_testing.local import history
from echorl_testing.local.damage import flipped_bit, stale_leftovers, truncated_shard
from echorl_testing.local.fault_points import ENGINE, ORCHESTRATOR, TRAINER
from echorl_testing.local.local_run import LocalRun, eventually, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.SAMPLED, pytest.mark.timeout(1200)]

INTERVAL = 2
START_S, STEP_S = 400.0, 300.0


def killed(run: LocalRun) -> None:
    """SIGKILL to the supervisor."""
    run.kill()


def stopped(run: LocalRun) -> None:
    """Ctrl-C: the last step is saved."""
    run.interrupt()
    assert run.ended(STEP_S) == ExitCode.STOPPED, run.output()
    assert run.state()["phase"] == "Suspended"
    attempt = run.directory.last_attempt()
    assert history.committed(run.directory)[-1].step == max(history.reported_steps(run.directory, attempt))


def stopped_twice(run: LocalRun) -> None:
    """Ctrl-C again, before the first one could end the run by itself."""
    os.kill(run.roles()["orchestrator-0"], signal.SIGSTOP)
    run.interrupt()
    eventually(lambda: history.events(run.directory, "signal"), "the first signal was seen", STEP_S)
    run.interrupt()
    assert run.ended(STEP_S) == 128 + signal.SIGINT


def drawn_points() -> dict[str, str]:
    """One of the ranks', and another one."""
    chosen = campaign.drawn("ranks' points", list(TRAINER), 1) + campaign.drawn("points", [*ORCHESTRATOR, *ENGINE], 1)
    return {point: when for point, when in (TRAINER | ORCHESTRATOR | ENGINE).items() if point in chosen}


def test_a_short_run_with_drawn_faults(tmp_path: Path) -> None:
    points = drawn_points()
    [end] = campaign.drawn("ends of a run", [killed, stopped, stopped_twice], 1)
    [damaged] = campaign.drawn("damages", [flipped_bit, truncated_shard], 1)
    # More steps than there is time for, of one learning rate: how many are made is known when it has ended.
    document = manifest(
        write_model(tmp_path / "model"), maxSteps=4000, checkpoint={"interval": INTERVAL, "keepLast": 3}
    )
    [ranks] = [2] if "orchestrator.one_rank_pulled" in points else campaign.drawn("ranks", [1, 2], 1)
    document["spec"]["trainer"] |= {"replicas": ranks, "optimizer": {"type": "adamw", "lr": 1e-3}}
    with local_run(tmp_path, document) as run:
        run.start(points)
        run.until(lambda: all((run.markers / point).exists() for point in points), f"{list(points)}", START_S)
        goes_on(run, ranks)
        assert [attempt for attempt, _ in run.prepared()] == [1, 2]
        assert all(0 <= steps <= INTERVAL for steps in history.redone(run.directory).values())
        end(run)
        run.assert_nothing_left()
        skipped = damaged(run)
        planted = stale_leftovers(run)
        last = document["spec"]["maxSteps"] = skipped + 4 * INTERVAL  # until the damaged checkpoint is kept no more
        run.write(document)
        run.start()
        assert run.ended(START_S) == 0, run.output()
        run.assert_nothing_left()
        attempt, prepared = run.prepared()[-1]
        assert attempt == 3
        assert [one.step for one in prepared.skipped] == [skipped]
        assert f"attempt 3: skipped checkpoint {skipped}: " in run.output()
        assert 0 < prepared.resume_step < skipped
        assert set(planted) <= set(prepared.removed)
        restarts = run.state()["restarts_by_cause"]
        assert restarts["trainer"] == 1
        assert restarts.get("inference", 0) == len(points.keys() & ENGINE.keys())
        history.assert_nothing_was_trained_twice(run.directory, last)
        replayed, loaded = history.never_killed(run.directory, tmp_path / "check", last_step=last)
        assert replayed["step"] == last
        assert replayed == loaded


def goes_on(run: LocalRun, ranks: int) -> None:
    """Wait for two more checkpoints, and for every role."""
    roles = {"inference-0", "orchestrator-0", *(f"trainer-{rank}" for rank in range(ranks))}
    last = max(history.committed_steps(run.directory), default=0)
    run.until(lambda: history.committed_steps(run.directory)[-1:] >= [last + 2 * INTERVAL], "checkpoints", START_S)
    run.until(lambda: set(run.roles()) == roles, "roles", START_S)
