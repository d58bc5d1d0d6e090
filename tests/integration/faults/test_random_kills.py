"""A run whose processes are killed at random moments, its supervisor last; the same command completes it."""

import random
import shutil
import time
from pathlib import Path

import pytest

from echorl_core.attempts import Prepared
from echorl_core.rundir import TEMPORARY_PREFIX
from echorl_testing import history
from echorl_testing.local_run import LocalRun, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults]

SEED = 20
MAX_STEPS, INTERVAL = 60, 2
START_S, STEP_S = 300.0, 200.0
FOREIGN_UID = "another-runs-uid"


@pytest.mark.timeout(900)
def test_random_kills_of_every_role_and_of_the_supervisor(tmp_path: Path) -> None:
    document = manifest(
        write_model(tmp_path / "model"), maxSteps=MAX_STEPS, checkpoint={"interval": INTERVAL, "keepLast": 3}
    )
    chance = random.Random(SEED)
    with local_run(tmp_path, document) as run:
        run.start()
        run.until_step(INTERVAL, START_S)
        victims = ["trainer-0", "inference-0", "orchestrator-0", "trainer-0"]
        chance.shuffle(victims)
        for victim in victims:
            kill_at_some_moment(run, victim, chance)
        step = run.step() + 1 + chance.randrange(3)
        run.until_step(step, STEP_S)
        a_moment(chance)
        run.kill()
        run.assert_nothing_left()
        damaged = flipped_bit(run)
        planted = stale_leftovers(run)
        assert run.start().ended(START_S) == 0, run.output()
        run.assert_nothing_left()
        restarts = run.state()["restarts_by_cause"]
        assert restarts == {"trainer": 2, "inference": 1, "orchestrator": 1, "supervisor": 1}
        attempt, prepared = run.prepared()[-1]
        assert attempt == 4
        the_damaged_checkpoint_was_skipped(run, prepared, damaged)
        assert set(planted) <= set(prepared.removed)
        history.assert_nothing_was_trained_twice(run.directory, MAX_STEPS)
        assert all(attempt > 0 for attempt in history.recorded_attempts(run.directory))


def a_moment(chance: random.Random) -> None:
    """Up to about two steps: what is disturbed is a matter of chance, not of what a test could wait for."""
    time.sleep(chance.uniform(0.0, 0.6))


def kill_at_some_moment(run: LocalRun, victim: str, chance: random.Random) -> None:
    """Kill a role's process while the run trains, and wait until it trains again."""
    run.until_step(run.step() + 1 + chance.randrange(2), STEP_S)
    pid = run.roles()[victim]
    a_moment(chance)
    run.kill_role(pid)
    run.until_restarted(victim, pid, STEP_S)


def flipped_bit(run: LocalRun) -> int:
    """Damage the newest checkpoint; its step."""
    newest = history.committed(run.directory)[-1]
    part = next(part for part in newest.manifest.parts if part.role == "trainer" and part.file.endswith(".distcp"))
    with (newest.folder / part.file).open("r+b") as file:
        file.seek(part.size // 2)
        [byte] = file.read(1)
        file.seek(part.size // 2)
        file.write(bytes([byte ^ 1]))
    return newest.step
