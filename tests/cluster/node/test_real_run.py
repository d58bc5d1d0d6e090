"""A run whose pods are real: containers of a real node, real vLLM, real training, real kills.

By default the pods' programs are this machine's own environments (`make setup`), mounted read-only into a small image.
With ECHORL_TEST_IMAGES=1 they are the images that `make images` has built.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echorl_cli.cluster.kubeconfig import Place
from echorl_cli.view.folders import shown_runs
from echorl_cli.view.mirror import Mirror
from echorl_core import checkpoints
from echorl_core.rundir import RunDirectory
from echorl_testing import campaign
from echorl_testing.cluster import image_loading, machine_image
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.local.local_run import digits
from echorl_testing.operator.real_run import RealRun
from echorl_testing.operator.real_stage import ENVIRONMENTS, REPOSITORY, RESTRICTED, Stage, staged

pytestmark = [pytest.mark.timeout(1200), pytest.mark.vllm]

NAME = "real"
BUILT = "ECHORL_TEST_IMAGES"
_IMAGES = ("orchestrator", "trainer", "inference-cpu")
_START_S, _STEP_S, _END_S = 600.0, 400.0, 200.0


@pytest.fixture
def images(control_plane: Cluster, real_node: str) -> None:
    """Known to the node."""
    if os.environ.get(BUILT):
        image_loading.load(control_plane.node, _IMAGES)
        return
    if not (REPOSITORY / ENVIRONMENTS["inference"] / "bin" / "python").exists():
        pytest.skip("no environment with vLLM: make setup")
    control_plane.node.import_image(machine_image.image())


@pytest.fixture
def stage(
    control_plane: Cluster, api: Api, images: None, make_namespace: Callable[..., str], tmp_path: Path
) -> Iterator[Stage]:
    """A namespace that admits restricted pods only, a volume with a model, the operator at work."""
    install_crd(api)
    with staged(
        control_plane,
        make_namespace(RESTRICTED),
        tmp_path,
        NAME,
        built=bool(os.environ.get(BUILT)),
        maxSteps=400,
        environments={"train": [digits()]},
        failurePolicy={"maxRestarts": 3, "backoffSeconds": 0},
    ) as stage:
        yield stage


def an_engine_starts_again_where_it_is_and_serves_the_newest_policy(run: RealRun) -> None:
    before = run.uids()
    run.kill("inference")
    run.note("the engine's processes are killed")
    run.until("the engine starts again", lambda: run.restarts("inference") == 1, _START_S)
    run.ready("inference", _START_S)
    run.note("the engine is ready again")
    trained = run.goes_on(_START_S)
    status = run.status()
    assert status["attempt"] == 1
    assert status["policy"]["served"]["max"] >= trained
    assert status["restartsByRole"]["inference"] == 1
    assert run.uids() == before


def an_orchestrator_is_made_anew_in_the_same_attempt(run: RealRun) -> None:
    pods = run.uids()
    before = pods["orchestrator"]
    run.kill("orchestrator")
    run.note("the orchestrator's processes are killed")
    run.until("another orchestrator", lambda: run.uids().get("orchestrator", before) != before, _START_S)
    run.ready("orchestrator", _START_S)
    run.note("another orchestrator is ready")
    run.goes_on(_START_S)
    assert run.status()["attempt"] == 1
    assert {role for role, uid in run.uids().items() if uid != pods[role]} == {"orchestrator"}


def a_rank_takes_its_gang_to_an_attempt_from_the_last_checkpoint(run: RealRun) -> None:
    saved, pods = run.status()["checkpoint"]["step"], run.uids()
    run.kill("trainer")
    run.note("the trainer's processes are killed")
    run.until("a new attempt", lambda: run.status()["attempt"] == 2, _STEP_S)
    run.note("a new attempt begins")
    status = run.phase("Running", _START_S, attempt=2)
    assert status["resumeStep"] >= saved > 0
    assert status["restartsByRole"]["trainer"] == 1
    run.goes_on(_START_S)
    run.note(f"trains again, from step {status['resumeStep']}")
    assert run.uids()["inference"] == pods["inference"]
    assert run.uids()["trainer"] != pods["trainer"]


def a_copy_of_its_records_grows_with_them(run: RealRun, kubeconfig: Path, folder: Path) -> None:
    mirror = Mirror(Place(str(kubeconfig), None, run.namespace), [NAME], folder)
    mirror.start()
    try:
        (shown,) = shown_runs(mirror.folders)
        assert shown.label == NAME
        steps = shown.run.records(1) / "steps.jsonl"
        before = steps.read_bytes() if steps.exists() else b""
        run.until("the copy grows", lambda: steps.exists() and len(steps.read_bytes()) > len(before), _STEP_S)
        assert mirror.notices == []
    finally:
        mirror.close()


def it_ends_at_a_step_that_is_edited_and_frees_its_pods(run: RealRun, directory: RunDirectory) -> None:
    # Further ahead than it trains while the edit is on its way.
    last = run.status()["step"] + 12
    run.edit({"maxSteps": last})
    status = run.phase("Succeeded", _STEP_S)
    run.note(f"succeeded at step {last}")
    run.until("pods are free", lambda: not run.pods("trainer") and not run.pods("inference"), _END_S)
    run.until("the orchestrator has ended by itself", lambda: run.ended_well("orchestrator"), _END_S)
    assert (status["step"], status["checkpoint"]["step"]) == (last, last)
    assert status["policy"]["trained"] == last
    phases = [entry["phase"] for entry in status["timeline"]]
    assert phases[:3] == ["Preparing", "Starting", "Running"]
    assert phases[-1] == "Succeeded"
    committed, _ = checkpoints.committed(directory)
    assert last in {one.step for one in committed}


DISTURBANCES: dict[str, Callable[[RealRun], None]] = {
    "engine": an_engine_starts_again_where_it_is_and_serves_the_newest_policy,
    "orchestrator": an_orchestrator_is_made_anew_in_the_same_attempt,
    "trainer": a_rank_takes_its_gang_to_an_attempt_from_the_last_checkpoint,
}
"""In this order the first two find attempt 1."""


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(campaign.drawn("a run in real pods", list(DISTURBANCES), 1), marks=campaign.SAMPLED),
        pytest.param(list(DISTURBANCES), marks=campaign.ALL),
    ],
    ids=" ".join,
)
def test_a_run_trains_in_real_pods_outlives_its_containers_and_succeeds(
    stage: Stage, real_node: str, control_plane: Cluster, tmp_path: Path, killed: list[str]
) -> None:
    run = stage.run
    run.create(stage.document)
    run.started(_START_S)
    assert {pod["spec"]["nodeName"] for pod in run.pods().values()} == {real_node}
    for role in ENVIRONMENTS:
        assert "uid=10001(echorl) gid=10001(echorl)" in run.inside(role, "id")
        with pytest.raises(ClusterError, match="Read-only file system"):
            run.inside(role, "touch", "/etc/echorl-was-here")
    a_copy_of_its_records_grows_with_them(run, control_plane.connection.kubeconfig, tmp_path / "copies")
    for name in killed:
        DISTURBANCES[name](run)
    it_ends_at_a_step_that_is_edited_and_frees_its_pods(run, stage.directory)
    assert run.status()["attempt"] == 1 + ("trainer" in killed)
