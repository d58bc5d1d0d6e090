"""One run that is killed at every named point, one after the other, and ends as if it had never been."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing import history
from echorl_testing.local_run import LocalRun, local_run, manifest, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults]

MAX_STEPS, INTERVAL = 14, 2

# "@N": at the N-th passage in a process's life. Attempt 1 dies at step 3, attempt 2 (from 2) at the pull of step 6,
# attempt 3 (from 4) while it saves step 8, attempt 4 (from 6) after it wrote step 10.
TRAINER = {"trainer.mid_step": "@3", "trainer.pulled": "@4", "trainer.mid_save": "@2", "trainer.saved": "@2"}
ORCHESTRATOR = {
    "orchestrator.before_seal": "@1",
    "orchestrator.after_seal": "@1",
    "orchestrator.one_rank_pulled": "@1",
    "orchestrator.staged": "@2",
    "orchestrator.mid_apply": "@3",
    "orchestrator.before_resume": "@3",
    "orchestrator.before_manifest": "@1",
}
# The second one counts tensors: in the middle of the sixth version that the restarted engine applies.
ENGINE = {"engine.staged": "@4", "engine.mid_apply": "@140"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    folder = tmp_path_factory.mktemp("points")
    spec = manifest(
        write_model(folder / "model"), maxSteps=MAX_STEPS, checkpoint={"interval": INTERVAL, "keepLast": 3}
    )
    spec["spec"]["trainer"]["replicas"] = 2
    with local_run(folder, spec) as run:
        run.start(TRAINER | ORCHESTRATOR | ENGINE)
        yield run


@pytest.mark.timeout(900)
def test_it_completes_although_it_is_killed_at_every_point(run: LocalRun) -> None:
    assert run.ended(800) == 0, run.output()
    assert sorted(path.name for path in run.markers.iterdir()) == sorted(TRAINER | ORCHESTRATOR | ENGINE)
    assert run.state()["restarts_by_cause"] == {
        "trainer": len(TRAINER),
        "orchestrator": len(ORCHESTRATOR),
        "inference": len(ENGINE),
    }
    run.assert_nothing_left()
