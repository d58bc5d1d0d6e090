"""A run whose processes are killed at random moments, its supervisor last; the same command completes it."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.local import history
from echorl_testing.local.damage import flipped_bit, planted_batch, stale_leftovers
from echorl_testing.local.local_run import LocalRun, eventually, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.ALL]

SEED = 20
MAX_STEPS, INTERVAL = 30, 2
START_S, STEP_S = 400.0, 300.0


@pytest.mark.timeout(1800)
def test_random_kills_of_every_role_and_of_the_supervisor(tmp_path: Path) -> None:
    document = manifest(
        write_model(tmp_path / "model"), maxSteps=MAX_STEPS, checkpoint={"interval": INTERVAL, "keepLast": 3}
    )
    chance = random.Random(SEED)
    with local_run(tmp_path, document) as run:
        run.start()
        run.until_step(2 * INTERVAL, START_S)
        victims = ["trainer-0", "inference-0", "orchestrator-0", "trainer-0"]
        chance.shuffle(victims)
        for victim in victims:
            kill_at_some_moment(run, victim, chance)
        run.until_step(run.step() + 1 + chance.randrange(2), STEP_S)
        a_moment(chance)
        run.kill()
        run.assert_nothing_left()
        damaged = flipped_bit(run)
        planted = stale_leftovers(run)
        run.start()
        run.until_step(damaged, START_S)
        a_planted_batch_is_not_served(run)
        assert run.ended(STEP_S) == 0, run.output()
        run.assert_nothing_left()
        assert run.state()["restarts_by_cause"] == {"trainer": 2, "inference": 1, "orchestrator": 2, "supervisor": 1}
        attempt, prepared = run.prepared()[-1]
        assert attempt == 4
        assert [one.step for one in prepared.skipped] == [damaged]
        assert "content differs from what was committed" in prepared.skipped[0].reason
        assert f"attempt 4: skipped checkpoint {damaged}: " in run.output()
        assert 0 < prepared.resume_step < damaged
        assert set(planted) <= set(prepared.removed)
        history.assert_nothing_was_trained_twice(run.directory, MAX_STEPS)
        replayed, loaded = history.never_killed(run.directory, tmp_path / "check", last_step=MAX_STEPS)
        assert replayed == loaded


def a_moment(chance: random.Random) -> None:
    """Up to about two steps: what is disturbed is a matter of chance, not of what a test could wait for."""
    time.sleep(chance.uniform(0.0, 0.6))


def kill_at_some_moment(run: LocalRun, victim: str, chance: random.Random) -> None:
    """Kill a role's process while the run trains, and wait for its successor."""
    run.until_step(run.step() + 1 + chance.randrange(2), STEP_S)
    before = run.roles()
    a_moment(chance)
    os.kill(before[victim], signal.SIGKILL)
    eventually(lambda: run.roles().get(victim, before[victim]) != before[victim], f"a new {victim}", STEP_S)


def a_planted_batch_is_not_served(run: LocalRun) -> None:
    """An older attempt's writer leaves a batch behind while a newer one works; its next orchestrator finds it."""
    before = run.roles()["orchestrator-0"]
    planted_batch(run, MAX_STEPS)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: run.roles().get("orchestrator-0", before) != before, "a new orchestrator", STEP_S)
