"""A coding run whose sandboxes are pods: engine, trainer and orchestrator in pods, the scripted agent in others."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_testing.cluster import images, machine_image
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_process import operator_process
from echorl_testing.operator.real_run import RealRun
from echorl_testing.sandboxes.broker import ACCOUNT, broker_process, grant
from echorl_testing.sandboxes.coding_image import CODING, coding_image, missing

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.vllm]

REPOSITORY = Path(__file__).resolve().parents[3]
NAME, USER = "coding", 10001
ENVIRONMENTS = {"orchestrator": ".venv", "trainer": ".venv", "inference": ".venv-inference"}
START_S, TRAIN_S, END_S = 600.0, 900.0, 200.0
EXAMPLE = REPOSITORY / "examples" / "swe.yaml"
STEPS = 1


def document() -> dict[str, Any]:
    """The example, small, with sandboxes in pods; every episode trains, whatever its reward."""
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    made["metadata"]["name"] = NAME
    spec = made["spec"]
    (train,) = spec["environments"]["train"]
    train["args"]["seeded"]["image"] = CODING
    train["stateColumns"] = ["ended"]
    spec |= {
        "model": {**spec["model"], "name": "/models/swe"},
        "maxSteps": STEPS,
        "environments": {"train": [{**train, "episodeTimeout": "15m"}]},
        "storage": {"size": "1Gi"},
        "sandboxes": {
            "provider": "pod",
            "concurrency": 1,
            "resources": {"cpu": 0.25, "memory": "256Mi", "disk": "64Mi", "processes": 64},
        },
    }
    spec["algorithm"] |= {"groupSize": 4, "batchSize": 4, "filters": []}
    for role, environment in ENVIRONMENTS.items():
        spec.setdefault(role, {})["template"] = machine_image.template(role, REPOSITORY, environment)
    return made


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What the run's claim holds: the example's model."""
    prepare = [sys.executable, "-m", "examples.prepare_model", "--manifest", EXAMPLE]
    subprocess.run(prepare, cwd=REPOSITORY, check=True, timeout=START_S)
    folder = tmp_path / "volume"
    (folder / "models").mkdir(parents=True)
    subprocess.run(["cp", "-r", REPOSITORY / "runs" / "models" / "swe", folder / "models" / "swe"], check=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return folder


@pytest.fixture
def broker_settings(control_plane: Cluster, real_node: str) -> dict[str, str]:
    """Of a broker whose daemon the node has, as it has the tasks' image and that of the run's own pods."""
    if lacks := missing():
        pytest.skip(f"not there: {lacks}")
    if not (REPOSITORY / ENVIRONMENTS["inference"] / "bin" / "python").exists():
        pytest.skip("no environment with vLLM: make setup")
    daemon = images.sandbox_daemon(Binaries().path("sandbox-daemon"))
    for image in (daemon, coding_image(), machine_image.image()):
        control_plane.node.import_image(image)
    return {"daemonImage": daemon.name, "imagePullPolicy": "Never"}


def steps(volume: Path) -> list[dict[str, Any]]:
    """What the run has recorded of its steps."""
    [records] = volume.rglob("steps.jsonl")
    return [json.loads(line) for line in records.read_text().splitlines()]


async def test_an_agent_codes_in_pods_and_the_run_succeeds(
    control_plane: Cluster,
    api: Api,
    make_namespace: Callable[..., str],
    broker_settings: dict[str, str],
    volume: Path,
    tmp_path: Path,
) -> None:
    install_crd(api)
    namespace = make_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    grant(api, namespace)
    connection = control_plane.connection
    token = control_plane.service_account_token(namespace, ACCOUNT)
    of_broker = connection.write_kubeconfig(tmp_path / "kubeconfig", token=token)
    # Pods reach the machine at its address in their network.
    broker = broker_process(of_broker, namespace, tmp_path, broker_settings, "--bind", "0.0.0.0")
    async with broker as url:
        broker_url = url.replace("127.0.0.1", control_plane.layout.host_address)
        roles = dict.fromkeys(("trainer", "inference", "inferenceCpu", "orchestrator"), machine_image.MACHINE)
        with ExitStack() as stack:
            stack.enter_context(folder_volume(api, namespace, f"{NAME}-volume", volume))
            stack.enter_context(machine_image.claims(api, namespace, REPOSITORY))
            settings = {"images": roles, "brokerUrl": broker_url}
            stack.enter_context(operator_process(connection.kubeconfig, namespace, tmp_path, settings, "--no-election"))
            run = RealRun(control_plane, namespace, NAME, lambda: None)
            run.create(document())
            run.until("a sandbox is ready", lambda: run.status().get("sandboxes", {}).get("alive"), START_S)
            run.note("an agent works in a pod")
            status = run.phase("Succeeded", TRAIN_S)
            run.note("succeeded")
            run.until("pods are free", lambda: not run.pods("sandbox") and not run.pods("trainer"), END_S)
    assert status["step"] == STEPS
    # The run may end before the operator asks for the state of its only step.
    [row] = steps(volume)
    assert "reward/swe/mean" in row, "what the agents did was graded"
    assert "lost" not in status["sandboxes"]
