"""Misbehaving environments, a full disk, a stop, damage before a resume, an environment that breaks; an end at once."""

import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from echorl_core.names import ExitCode
from echorl_orchestrator.records.recorder import STEPS, read_rows
from echorl_testing import campaign
from echorl_testing.local import history
from echorl_testing.local.damage import truncated_shard
from echorl_testing.local.local_run import SUPPORT, LocalRun, eventually, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.ALL]

START_S = 400.0
STEP_S = 200.0


def rows(run: LocalRun, attempt: int) -> list[dict[str, Any]]:
    return read_rows(run.directory.records(attempt) / STEPS)


def checkpoint(run: LocalRun) -> dict[str, Any]:
    found: dict[str, Any] = run.orchestrator_state().get("checkpoint") or {}
    return found


@contextmanager
def full_disk(pid: int, limit: int) -> Iterator[None]:
    """No file of a process may become larger than ``limit`` bytes."""
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, unlimited[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.timeout(1800)
def test_a_disturbed_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    environment = {
        "name": "faulty",
        "type": "import:echorl_testing.orchestrator.faulty_environments:faulty",
        "args": {"broken": str(broken)},
        "episodeTimeout": "4s",
        "maxRetries": 0,
        # So few that each is far from its time-out while batches ahead are filled.
        "maxConcurrent": 32,
        "sampling": {"temperature": 1.0, "maxCompletionTokens": 12},
    }
    model = write_model(tmp_path / "model")
    document = manifest(
        model,
        # More than there is time for.
        maxSteps=4000,
        environments={"train": [environment]},
        code={"path": str(SUPPORT)},
        # An episode that hangs shall meet its time-out before its group is too old to be of use: sampling may run ahead
        # of training by several batches a second.
        algorithm={"groupSize": 4, "batchSize": 16, "maxStaleness": 60},
    )
    with local_run(tmp_path, document) as run:
        run.start()
        run.until_step(4, START_S)
        a_full_disk_costs_one_checkpoint(run)
        bad_episodes_are_counted_and_their_groups_go_on(run)
        ctrl_c_saves_and_stops(run)
        skipped = truncated_shard(run)
        run.start()
        run.until_step(skipped + 1, START_S)
        the_checkpoint_before_was_used(run, skipped)
        broken.touch()
        a_broken_environment_ends_the_run(run)


def a_full_disk_costs_one_checkpoint(run: LocalRun) -> None:
    before, largest = run.until(lambda: exported_bytes(run), "a checkpoint with exported weights", STEP_S)
    # Enough for published weights, too little for a shard with two moments a weight.
    with full_disk(run.roles()["trainer-0"], largest * 3 // 2):
        told = run.until(lambda: checkpoint(run).get("abandoned"), "an abandoned checkpoint", STEP_S)
        lost = int(told.split(":")[0].removeprefix("checkpoint "))
        assert "could not save" in told
        assert "File too large" in told
        assert str(run.directory.checkpoint(lost)) in told
        run.until(lambda: told in run.output(), "the terminal tells it", STEP_S)
        logged = "checkpoint could not be saved; training goes on, the one before stays"
        run.until(lambda: logged in run.log("trainer-0"), "the rank logs it", STEP_S)
        run.until_step(lost + 1, STEP_S)
        assert lost not in [one.step for one in history.committed(run.directory)]
        assert max(one.step for one in history.committed(run.directory)) >= before
    run.until(lambda: (checkpoint(run).get("step") or 0) > lost, "the next checkpoint", STEP_S)
    assert run.state()["restarts"] == 0


def exported_bytes(run: LocalRun) -> tuple[int, int] | None:
    """Step of the newest checkpoint and size of its largest file of weights; None if it was removed meanwhile."""
    step = checkpoint(run).get("step")
    if not step:
        return None
    try:
        files = [file.stat().st_size for file in run.directory.checkpoint(step).rglob("*.safetensors")]
    except FileNotFoundError:
        return None
    return (step, max(files)) if files else None


def bad_episodes_are_counted_and_their_groups_go_on(run: LocalRun) -> None:
    def counted() -> Counter[str]:
        names = ("failures/env", "failures/timeout", "groups/partial")
        return Counter({name: sum(row.get(name, 0) for row in rows(run, 1)) for name in names})

    run.until(lambda: min(counted().values()) > 0, "episodes that raise, hang and return NaN", STEP_S)
    for reason in (
        "KeyError: 'inventory'",
        "reward: found nan, accepted is a finite number",
        "not done after 4 s (episodeTimeout)",
    ):
        run.until(lambda reason=reason: reason in run.log("orchestrator-0"), f"{reason!r} in the log", STEP_S)
    run.until(lambda: any(row["batch/partial_groups"] for row in rows(run, 1)), "a batch with a partial group", STEP_S)
    assert all(row["denominator/rl"] + row["denominator/ce"] > 0 for row in rows(run, 1))


def ctrl_c_saves_and_stops(run: LocalRun) -> None:
    run.interrupt()
    assert run.ended(STEP_S) == ExitCode.STOPPED, run.output()
    assert run.state()["phase"] == "Suspended"
    run.assert_nothing_left()
    last = history.committed(run.directory)[-1].step
    assert last == max(history.reported_steps(run.directory, 1))


def the_checkpoint_before_was_used(run: LocalRun, skipped: int) -> None:
    attempt, prepared = run.prepared()[-1]
    assert attempt == 2
    assert [one.step for one in prepared.skipped] == [skipped]
    assert "bytes" in prepared.skipped[0].reason
    assert 0 < prepared.resume_step < skipped
    assert f"attempt 2: skipped checkpoint {skipped}: " in run.output()
    assert f"attempt 2: resuming from step {prepared.resume_step}" in run.output()
    assert min(history.reported_steps(run.directory, 2)) == prepared.resume_step + 1


def a_broken_environment_ends_the_run(run: LocalRun) -> None:
    assert run.ended(STEP_S) == ExitCode.ENVIRONMENT, run.output()
    assert "64 episodes failed one after the other; the last one: env: ValueError: no such level" in run.output()
    assert run.state()["phase"] == "Failed"
    assert "no such level" in run.state()["reason"]
    assert run.state()["restarts"] == 0
    run.assert_nothing_left()


@pytest.mark.timeout(1200)
def test_ctrl_c_twice_ends_everything_at_once(tmp_path: Path) -> None:
    with local_run(tmp_path, manifest(write_model(tmp_path / "model"))) as run:
        run.start()
        # The engine has begun to load by then.
        eventually(run.orchestrator_state, "an orchestrator", START_S)
        eventually(lambda: set(run.roles()) == {"inference-0", "orchestrator-0", "trainer-0"}, "all roles", START_S)
        roles = run.roles()
        # Held, so that the first Ctrl-C cannot end the run by itself.
        os.kill(roles["orchestrator-0"], signal.SIGSTOP)
        run.interrupt()
        eventually(lambda: history.events(run.directory, "signal"), "the first signal was seen", STEP_S)
        run.interrupt()
        assert run.ended(STEP_S) == 128 + signal.SIGINT
        run.assert_nothing_left()
