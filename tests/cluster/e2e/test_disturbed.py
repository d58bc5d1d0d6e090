"""What happens to runs on clusters, at random moments: pods go, containers crash, the operator is replaced."""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echorl_core import checkpoints
from echorl_core.rundir import RunDirectory, write_folder
from echorl_testing.local.local_run import digits, manifest
from echorl_testing.operator.real_run import RealRun
from echorl_testing.operator.site import OPERATOR, SYSTEM, Site, own

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.vllm]

NAME = "disturbed"
SEED = int(os.environ.get("ECHORL_E2E_SEED", "0"))
START_S, STEP_S, END_S = 600.0, 400.0, 200.0
MOMENT_STEPS = 3
"""A disturbance comes up to so many steps after what came before is over."""


@pytest.fixture
def directory(volume: Path) -> RunDirectory:
    """Where the run will be: an older one has left batches, broadcasts, half-written files and a stop marker."""
    return RunDirectory(volume / "runs" / NAME)


@pytest.fixture
def leftovers(directory: RunDirectory, volume: Path) -> list[str]:
    for step in (1, 2, 50):
        write_folder(directory.batch(step), {"seal.json": b'{"run_uid": "older"}', "rank_0.bin": b"stale"})
    folders = [directory.broadcast(1, 1), directory.broadcast(9, 99)]
    for folder in folders:
        write_folder(folder, {"manifest.json": json.dumps({"run_uid": "older", "version": 99}).encode()})
    stop = directory.root / "stop"
    stop.touch()
    own(volume / "runs")
    stale = [*(directory.batch(step) for step in (1, 2, 50)), *(folder.parent for folder in folders), stop]
    return [str(path.relative_to(directory.root)) for path in stale]


@pytest.fixture
def run(installed: Site, leftovers: list[str]) -> Iterator[RealRun]:
    document = manifest(
        Path("/models/tiny"),
        maxSteps=400,
        environments={"train": [digits()]},
        storage={"claimName": "tiny"},
        failurePolicy={"maxRestarts": 5, "backoffSeconds": 0},
        record={"enabled": False},
    )
    document["metadata"]["name"] = NAME
    yield installed.apply(document)
    installed.transcript.run("kubectl", "--namespace", installed.namespace, "delete", "erl", NAME, "--ignore-not-found")


def test_a_run_outlives_what_happens_to_it(
    installed: Site, run: RealRun, directory: RunDirectory, leftovers: list[str]
) -> None:
    run.started(START_S)
    prepared = json.loads((directory.attempt(1) / "prepared.json").read_text())
    assert set(leftovers) <= set(prepared["removed"])
    assert (prepared["resume_step"], run.status()["resumeStep"]) == (0, 0)
    assert not directory.batch(50).exists()
    installed.transcript.say(f"removed before the start: {', '.join(prepared['removed'])}")

    dice = random.Random(SEED)
    disturbances = [*ALL]
    dice.shuffle(disturbances)
    for disturb in disturbances:
        at = run.status()["step"] + dice.randint(0, MOMENT_STEPS)
        run.until("the moment has come", lambda at=at: run.status()["step"] >= at, STEP_S)
        before = Before(run)
        run.note(f"step {before.step}: {disturb.__doc__}")
        disturb(installed, run, before)
        run.goes_on(START_S)
        run.note(f"trains on, attempt {run.status()['attempt']}, step {run.status()['step']}")
    installed.tell(run)
    # Further ahead than it trains while the edit is on its way.
    last = run.status()["step"] + 30
    run.edit({"maxSteps": last})
    status = run.phase("Succeeded", STEP_S)
    run.until("pods are free", lambda: not run.pods("trainer") and not run.pods("inference"), END_S)
    installed.tell(run)
    assert status["step"] == last
    committed, problems = checkpoints.committed(directory)
    assert not problems
    assert committed[-1].step == last


class Before:
    """How a run stood."""

    def __init__(self, run: RealRun) -> None:
        status = run.status()
        self.step, self.attempt, self.saved = status["step"], status["attempt"], status["checkpoint"]["step"]
        self.uids, self.restarts = run.uids(), {role: run.restarts(role) for role in run.uids()}
        self.counted = status.get("restartsByRole", {})


def new_attempt(run: RealRun, before: Before) -> None:
    """The gang began anew from a checkpoint; engines stayed."""
    status = run.phase("Running", START_S, attempt=before.attempt + 1)
    assert status["resumeStep"] >= before.saved
    assert status["restartsByRole"]["trainer"] == before.counted.get("trainer", 0) + 1
    assert run.uids()["inference"] == before.uids["inference"]
    assert run.uids()["trainer"] != before.uids["trainer"]
    run.note(f"attempt {status['attempt']} runs, from step {status['resumeStep']}")


def only(run: RealRun, before: Before, role: str) -> None:
    """Another pod of one role, and nothing else."""
    run.until(f"another {role}", lambda: run.uids().get(role, before.uids[role]) != before.uids[role], START_S)
    run.ready(role, START_S)
    changed = {one for one, uid in run.uids().items() if uid != before.uids[one]}
    assert (changed, run.status()["attempt"]) == ({role}, before.attempt)


def untouched(run: RealRun, before: Before) -> None:
    """The same pods, none of which was started again."""
    assert (run.uids(), run.status()["attempt"]) == (before.uids, before.attempt)
    assert {role: run.restarts(role) for role in before.restarts} == before.restarts


def trainer_pod_deleted(site: Site, run: RealRun, before: Before) -> None:
    """the trainer's pod is deleted"""
    site.delete_pod(run.namespace, run.pod("trainer")["metadata"]["name"])
    new_attempt(run, before)


def trainer_crashed(site: Site, run: RealRun, before: Before) -> None:
    """the trainer's processes are killed in place"""
    run.kill("trainer")
    new_attempt(run, before)


def orchestrator_pod_deleted(site: Site, run: RealRun, before: Before) -> None:
    """the orchestrator's pod is deleted"""
    site.delete_pod(run.namespace, run.pod("orchestrator")["metadata"]["name"])
    only(run, before, "orchestrator")


def engine_pod_deleted(site: Site, run: RealRun, before: Before) -> None:
    """the engine's pod is deleted"""
    site.delete_pod(run.namespace, run.pod("inference")["metadata"]["name"])
    only(run, before, "inference")


def engine_crashed(site: Site, run: RealRun, before: Before) -> None:
    """the engine's processes are killed in place"""
    run.kill("inference")
    again = before.restarts["inference"] + 1
    run.until("the engine starts again", lambda: run.restarts("inference") == again, START_S)
    run.ready("inference", START_S)
    assert (run.uids(), run.status()["attempt"]) == (before.uids, before.attempt)


def operator_pod_deleted(site: Site, run: RealRun, before: Before) -> None:
    """the operator's leader is deleted"""
    leader = site.leader()
    site.delete_pod(SYSTEM, leader)
    run.until("another one leads", lambda: leader not in site.operators() and site.leader() != leader, END_S)
    run.note("another operator leads")
    run.goes_on(START_S)
    untouched(run, before)


def operator_upgraded(site: Site, run: RealRun, before: Before) -> None:
    """the operator is upgraded"""
    old = set(site.operators())
    site.upgrade({"podAnnotations": {"echorl.test/upgraded-at": str(before.step)}, "workers": 8})
    run.until("only new operators", lambda: not old & set(site.operators()), END_S)
    run.note(f"all pods of {OPERATOR} are new")
    run.goes_on(START_S)
    untouched(run, before)


def suspended_edited_and_resumed(site: Site, run: RealRun, before: Before) -> None:
    """the run is suspended, edited and resumed"""
    run.edit({"suspend": True})
    status = run.phase("Suspended", STEP_S)
    saved = status["checkpoint"]["step"]
    assert saved >= before.step
    run.until("pods are free", lambda: not run.pods("trainer") and not run.pods("inference"), END_S)
    run.note(f"suspended with step {saved} saved, pods are free")
    site.tell(run)
    run.edit({"suspend": False, "checkpoint": {"interval": 3}})
    resumed = run.phase("Running", START_S, attempt=before.attempt + 1)
    assert resumed["resumeStep"] == saved
    run.note(f"attempt {resumed['attempt']} runs, from step {saved}")


Disturbance = Callable[[Site, RealRun, Before], Any]
ALL: tuple[Disturbance, ...] = (
    trainer_pod_deleted,
    trainer_crashed,
    orchestrator_pod_deleted,
    engine_pod_deleted,
    engine_crashed,
    operator_pod_deleted,
    operator_upgraded,
    suspended_edited_and_resumed,
)
