"""One run that is killed at every named point, one after the other, and ends as if it had never been."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.local import history
from echorl_testing.local.fault_points import ENGINE, ORCHESTRATOR, TRAINER
from echorl_testing.local.local_run import LocalRun, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.ALL, pytest.mark.timeout(2400)]

MAX_STEPS, INTERVAL = 14, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """The run, after its end."""
    folder = tmp_path_factory.mktemp("points")
    document = manifest(
        write_model(folder / "model"), maxSteps=MAX_STEPS, checkpoint={"interval": INTERVAL, "keepLast": 3}
    )
    document["spec"]["trainer"]["replicas"] = 2
    with local_run(folder, document) as run:
        run.start(TRAINER | ORCHESTRATOR | ENGINE).ended(1800)
        yield run


def test_it_completes_although_it_is_killed_at_every_point(run: LocalRun) -> None:
    assert run.supervisor.returncode == 0, run.output()
    assert sorted(path.name for path in run.markers.iterdir()) == sorted(TRAINER | ORCHESTRATOR | ENGINE)
    run.assert_nothing_left()


def test_only_a_lost_rank_begins_a_new_attempt(run: LocalRun) -> None:
    killed = Counter(
        event["process"]
        for event in history.events(run.directory, "exit")
        if event["exit_code"] == -signal.SIGKILL and not event["expected"]
    )
    assert killed["orchestrator-0"] == len(ORCHESTRATOR)
    # Both ranks may be at a point before one of them is dead.
    assert killed["trainer-0"] + killed["trainer-1"] >= len(TRAINER)
    restarts = run.state()["restarts_by_cause"]
    assert restarts["trainer"] == len(TRAINER)
    assert restarts["inference"] == len(ENGINE)
    # One that died together with a rank was not restarted by itself.
    assert restarts["orchestrator"] <= len(ORCHESTRATOR)
    assert [attempt for attempt, _ in run.prepared()] == list(range(1, len(TRAINER) + 2))


def test_each_attempt_redoes_one_checkpoint_interval_at_the_most(run: LocalRun) -> None:
    resumed = [prepared.resume_step for _, prepared in run.prepared()]
    assert 0 < resumed[-1] == max(resumed)
    redone = history.redone(run.directory)
    assert set(redone) == set(range(2, len(TRAINER) + 2))
    assert all(0 <= steps <= INTERVAL for steps in redone.values()), redone


def test_nothing_was_trained_twice(run: LocalRun) -> None:
    history.assert_nothing_was_trained_twice(run.directory, MAX_STEPS)


def test_the_trained_state_is_that_of_a_run_that_was_never_killed(run: LocalRun, tmp_path: Path) -> None:
    replayed, loaded = history.never_killed(run.directory, tmp_path, last_step=MAX_STEPS)
    assert replayed["step"] == MAX_STEPS
    assert replayed == loaded
