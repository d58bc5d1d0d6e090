"""An upgrade while a run trains: CRD, chart and operator of an earlier version give way to today's, and no pod does.

The run's pods are real, and are programs of the earlier version to their end. Operators are processes with the rights
and settings of the chart that is installed.
"""

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_core import checkpoints
from echorl_core.rundir import RunDirectory
from echorl_testing.cluster import machine_image
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.earlier import NoHistory, earlier
from echorl_testing.kube.helm import CHARTS, Helm
from echorl_testing.kube.run_objects import STRICT
from echorl_testing.local.local_run import digits, manifest
from echorl_testing.operator.operator_process import operator_process
from echorl_testing.operator.real_run import RealRun
from echorl_testing.operator.real_stage import (
    ENVIRONMENTS,
    PACKAGES,
    REPOSITORY,
    machine_programs,
    run_volume,
    with_machine_programs,
)
from echorl_testing.operator.site import OPERATOR

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.vllm]

NAME = "upgraded"
NEW_IMAGE = "echorl.test/machine:2"
"""The same programs by another name, as default images have with every version."""
START_S, STEP_S, END_S = 600.0, 400.0, 200.0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The earlier version."""
    try:
        return earlier(tmp_path / "earlier", "charts", *PACKAGES)
    except NoHistory as error:
        pytest.skip(str(error))


@pytest.fixture
def images(control_plane: Cluster, real_node: str) -> None:
    """The machine's programs, under the names of both versions' images."""
    if not (REPOSITORY / ENVIRONMENTS["inference"] / "bin" / "python").exists():
        pytest.skip("no environment with vLLM: make setup")
    image = machine_image.image()
    for name in (image.name, NEW_IMAGE):
        control_plane.node.import_image(dataclasses.replace(image, name=name))


def document(tree: Path) -> dict[str, Any]:
    """A small run whose pods have the earlier version's code in front of this machine's."""
    made = manifest(
        Path("/models/tiny"),
        maxSteps=4000,
        environments={"train": [digits()]},
        storage={"size": "1Gi"},
        failurePolicy={"maxRestarts": 0},
        record={"enabled": False},
    )
    made["metadata"]["name"] = NAME
    with_machine_programs(made, tree)
    return made


class Installation:
    """Both charts in a cluster, and their operator as a process."""

    def __init__(self, cluster: Cluster, helm: Helm, system: str, research: str, folder: Path) -> None:
        self.cluster, self.helm, self.system, self.research, self.folder = cluster, helm, system, research, folder

    def install(self, charts: Path, verb: str, image: str) -> None:
        """Install or upgrade, as docs/install.md says: the CRDs first."""
        self.helm(verb, "echorl-crds", charts / "echorl-crds", "--namespace", self.system, "--wait")
        values = {
            "watch": {"namespaces": [self.research]},
            "settings": {"images": dict.fromkeys(("trainer", "inference", "inferenceCpu", "orchestrator"), image)},
        }
        self.helm(verb, "echorl", charts / "echorl", "--namespace", self.system, values=values)

    def operator(self, code: Path | None) -> AbstractContextManager[Any]:
        """The operator at work, with what the chart gives it. ``code``: of which version; None: of this one."""
        api, where = self.cluster.api, f"/api/v1/namespaces/{self.system}"
        key = self.folder / "master-key"
        held = api.get(f"{where}/secrets/{OPERATOR}-master-key")["data"]["master-key"]
        key.write_bytes(base64.b64decode(held))
        settings = yaml.safe_load(api.get(f"{where}/configmaps/{OPERATOR}-settings")["data"]["settings.yaml"])
        token = self.cluster.service_account_token(self.system, OPERATOR)
        kubeconfig = self.cluster.connection.write_kubeconfig(self.folder / "kubeconfig", token=token)
        return operator_process(kubeconfig, self.research, self.folder, settings, "--no-election", code=code)


@pytest.fixture
def installation(
    control_plane: Cluster, api: Api, make_namespace: Callable[..., str], tree: Path, tmp_path: Path
) -> Iterator[Installation]:
    """Of the earlier version."""
    system, research = make_namespace(), make_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    (tmp_path / "helm").mkdir()
    helm = Helm(tmp_path / "helm", control_plane.connection.kubeconfig)
    made = Installation(control_plane, helm, system, research, tmp_path)
    made.install(tree / "charts", "install", machine_image.MACHINE)
    yield made
    helm("uninstall", "echorl", "--namespace", system)
    helm("uninstall", "echorl-crds", "--namespace", system)


@pytest.fixture
def volume(control_plane: Cluster, installation: Installation, tree: Path, tmp_path: Path) -> Iterator[Path]:
    """The run's volume, with a model, beside those that its pods take programs from."""
    research = installation.research
    with machine_programs(control_plane, research, tree), run_volume(control_plane, research, NAME, tmp_path) as folder:
        yield folder


class Before:
    """How a run stood: its pods with their containers, what these are made from, what status remembers."""

    def __init__(self, run: RealRun) -> None:
        self.pods, self.templates, self.status = pods_of(run), templates_of(run), run.status()

    def still_stands(self, run: RealRun) -> None:
        """Nothing was replaced, started again or forgotten."""
        assert pods_of(run) == self.pods
        assert templates_of(run) == self.templates
        status = run.status()
        for key in ("attempt", "startTime", "resumeStep", "restartsByRole"):
            assert status.get(key) == self.status.get(key), key
        assert status["timeline"][: len(self.status["timeline"])] == self.status["timeline"]
        # Progress and edits move these.
        moving = {"renderedGeneration", "reachedStep"}
        remembered, held = (
            {k: v for k, v in one["control"].items() if k not in moving} for one in (self.status, status)
        )
        assert held == remembered


def pods_of(run: RealRun) -> dict[str, Any]:
    """Uid, containers and their restarts of each pod that trains, by name."""
    found = {name: pod for role in ENVIRONMENTS for name, pod in run.pods(role).items()}
    return {
        name: (
            pod["metadata"]["uid"],
            [(one["containerID"], one["restartCount"]) for one in pod["status"]["containerStatuses"]],
        )
        for name, pod in found.items()
    }


def templates_of(run: RealRun) -> list[str]:
    """What the run's pods are made from, but for the trainer's config, which says how many steps there are."""
    kinds = (f"statefulsets/{NAME}-trainer", f"deployments/{NAME}-inference")
    found = (run.api.get(f"/apis/apps/v1/namespaces/{run.namespace}/{kind}") for kind in kinds)
    return [re.sub(f"{NAME}-trainer-[0-9a-f]{{10}}", "config", json.dumps(one["spec"]["template"])) for one in found]


def a_stored_run_is_accepted(run: RealRun) -> None:
    """By the new CRD, written back as it stands, its status too; nothing of it is dropped."""
    path = f"{run.path}/{run.name}"
    held = run.api.get(path)
    for place in (path, f"{path}/status"):
        again = run.api.request("PUT", place, held, query={**STRICT, "dryRun": "All"})
        assert (again["spec"], again["status"]) == (held["spec"], held["status"]), place


def test_a_run_goes_on_through_an_upgrade_as_if_there_had_been_none(
    control_plane: Cluster, api: Api, images: None, installation: Installation, volume: Path, tree: Path
) -> None:
    run = RealRun(control_plane, installation.research, NAME, lambda: None)
    with installation.operator(tree):
        run.create(document(tree))
        run.started(START_S)
        before = Before(run)
    installation.install(CHARTS, "upgrade", NEW_IMAGE)
    run.note("CRD and chart are today's")
    a_stored_run_is_accepted(run)
    with installation.operator(None):
        run.goes_on(STEP_S)
        before.still_stands(run)
        run.note("today's operator looks after it")
        # Further ahead than it trains meanwhile. Engines of the new version would not do for a trainer that stays.
        last = run.status()["step"] + 30
        run.edit({"maxSteps": last})
        run.until("the edit is carried out", lambda: run.status()["control"]["renderedGeneration"] == 2, STEP_S)
        before.still_stands(run)
        status = run.phase("Succeeded", STEP_S)
        run.note(f"succeeded at step {last}")
        run.until("pods are free", lambda: not run.pods("trainer") and not run.pods("inference"), END_S)
    assert (status["step"], status["attempt"]) == (last, 1)
    committed, problems = checkpoints.committed(RunDirectory(volume / "runs" / NAME))
    assert not problems
    assert committed[-1].step == last
