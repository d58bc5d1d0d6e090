"""``echorl status``, ``why`` and ``render --diff`` against a real API server, also as a plug-in of the real kubectl."""

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.cluster.pods import pod, pod_when
from echorl_testing.cluster.processes import wait_for
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import CRD_FILE, install_crd
from echorl_testing.operator.operator_world import SETTINGS, World, operating
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(400)

PROJECT = Path(__file__).parents[2] / "operator" / "distributions" / "cli" / "pyproject.toml"
_DEADLINE_S = 150.0
"""A command takes 2 s of a processor, most of it for imports."""
_WAIT_S = 120.0
NAMED_IN_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the executables that an installation of the package makes."""
    folder = tmp_path_factory.mktemp("bin")
    for name, entry in tomllib.loads(PROJECT.read_text())["project"]["scripts"].items():
        module, _, function = entry.partition(":")
        script = folder / name
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def no_crd(api: Api) -> Iterator[None]:
    name = f"{CRD_FILE.stem}.echorl.dev"
    if api.find(f"{NAMED_IN_CRDS}/{name}") is not None:
        api.delete(f"{NAMED_IN_CRDS}/{name}")
    wait_for("no EchoRLRuns", lambda: api.find(f"{NAMED_IN_CRDS}/{name}") is None, seconds=_WAIT_S)
    yield
    install_crd(api)


@pytest.fixture
def crd(api: Api) -> None:
    install_crd(api)


class Told:
    """How a command ended."""

    def __init__(self, process: "subprocess.CompletedProcess[str]") -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


async def echorl(*arguments: str, kubeconfig: Path) -> Told:
    return await _run([sys.executable, "-m", "echorl_cli", *arguments], kubeconfig)


async def _run(command: list[str], kubeconfig: Path, path: str = "") -> Told:
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}

    def run() -> Told:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, env=environ, check=False)
        return Told(done)

    return await asyncio.to_thread(run)


@asynccontextmanager
async def at_work(api: Api, connection: Connection, namespace: str) -> AsyncIterator[World]:
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace) as operator:
        yield World(api, namespace, cluster, operator)


async def test_a_cluster_without_the_crd(connection: Connection, no_crd: None) -> None:
    told = await echorl("status", "one", kubeconfig=connection.kubeconfig)
    assert (told.code, told.out) == (2, "")
    assert "knows no EchoRLRuns: the custom resource echorlruns.echorl.dev is missing" in told.err


async def test_a_run_in_its_life(
    api: Api, connection: Connection, control_plane: Cluster, namespace: str, crd: None, plugins: Path
) -> None:
    async with at_work(api, connection, namespace) as world:
        world.create()
        await world.phase("Running", seconds=_WAIT_S)
        played = world.cluster.orchestrators["one"]
        checkpoint = {"step": 5, "committed_at": "2026-01-01T00:00:00Z", "size_bytes": 9}
        times = {"trainer": {"useful": 300.0, "waiting": 700.0}, "inference": {"useful": 900.0, "stale": 100.0}}
        goodput = {"measured_at": "2026-01-01T00:00:00Z", "gpu_seconds": times, "useful_ratio": 0.6}
        played.say(step=7, reward=0.5, checkpoint=checkpoint, goodput=goodput)

        def counted() -> bool:
            status = world.status()
            # Pods are counted when they are seen, whatever the orchestrator says.
            return (status.get("step"), status["roles"]["trainer"]["ready"]) == (7, 2)

        await world.until("progress with both ranks", counted)
        kubectl = str(control_plane.binaries.path("kubectl"))
        command = [kubectl, "echorl", "status", "one", "-n", namespace, "-o", "json"]
        told = (await _run(command, connection.kubeconfig, str(plugins))).json()
        assert (told["phase"], told["step"], told["maxSteps"], told["notice"]) == ("Running", 7, 20, "")
        assert [entry["phase"] for entry in told["timeline"]] == ["Preparing", "Starting", "Running"]
        assert all(entry["seconds"] >= 0 for entry in told["timeline"])
        assert told["roles"]["trainer"] == {"ready": 2, "desired": 2}
        settings = plugins / "settings.yaml"
        settings.write_text(f"operatorVersion: {SETTINGS.operator_version}\n")
        command = [kubectl, "echorl", "render", "--diff", "one", "-n", namespace, "--settings", str(settings)]
        diff = await _run(command, connection.kubeconfig, str(plugins))
        assert (diff.code, diff.err) == (0, "")
        assert diff.out.endswith("the manifest: nothing differs\n")
        why_command = [kubectl, "echorl", "why", "one", "-n", namespace]
        why = await _run(why_command, connection.kubeconfig, str(plugins))
        assert (why.code, why.err) == (0, "")
        assert why.out.startswith("one runs since ")
        assert ", step 7 of 20: waiting for episodes" in why.out.splitlines()[0]
        slow = await _run([*why_command, "--slow"], connection.kubeconfig, str(plugins))
        assert slow.out.startswith("one: the engines are the bottleneck, the trainer waits for batches: ")
        assert slow.out.splitlines()[1:] == [
            "  trainer waiting: 70% of 16 min 40 s",
            "  inference useful: 90% of 16 min 40 s",
        ]
    # Nobody looks any more, and a pod goes.
    api.delete(f"/api/v1/namespaces/{namespace}/pods/one-trainer-0")
    late = await echorl("why", "one", "-n", namespace, kubeconfig=connection.kubeconfig)
    says = "its status says 2 trainer pods ready, there are"
    assert late.out.startswith(f"the operator does not look at this run: {says}")


async def test_a_run_that_nobody_looks_after(
    api: Api, connection: Connection, make_namespace: Callable[..., str], crd: None, tmp_path: Path
) -> None:
    here, elsewhere = make_namespace(), make_namespace()
    world = World(api, here, None, None)  # type: ignore[arg-type]
    world.create("first")
    world.create("second")
    admin = connection.kubeconfig
    why, missing, none = await asyncio.gather(
        echorl("why", "first", "-n", here, kubeconfig=admin),
        echorl("why", "frist", "-n", here, kubeconfig=admin),
        echorl("status", "first", "-n", elsewhere, kubeconfig=admin),
    )
    assert why.out.startswith("the operator has not looked at this run")
    assert "it has no status" in why.out
    assert (missing.code, missing.err) == (2, f"namespace {here}: found no run 'frist', there are: first, second\n")
    assert none.code == 2
    assert f"found no run 'first', nor any other; there is one in: {here}" in none.err
    stranger = connection.write_kubeconfig(
        tmp_path / "mallory", token=connection.user_tokens["mallory"], namespace=here
    )
    refused = await echorl("why", "first", kubeconfig=stranger)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith('not allowed: echorlruns.echorl.dev "first" is forbidden: User "mallory" cannot get')


async def test_gpus_that_others_hold(
    api: Api,
    connection: Connection,
    namespace: str,
    crd: None,
    fake_nodes: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    nodes = fake_nodes(gpu=2, cpu=1)
    held = {"busy-a": (nodes[0], 7), "busy-b": (nodes[1], 6)}
    for name, (node, gpus) in held.items():
        body = pod(name, gpus=gpus)
        body["spec"]["nodeName"] = node
        api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        pod_when(api, f"/api/v1/namespaces/{namespace}/pods/{name}", is_ready)
    _may_look_at_namespace(api, namespace, "alice")
    alice = connection.write_kubeconfig(tmp_path / "alice", token=connection.user_tokens["alice"], namespace=namespace)
    with folder_volume(api, namespace, "one-volume", tmp_path):
        async with at_work(api, connection, namespace) as world:
            world.cluster.held = {"trainer", "inference", "orchestrator"}
            world.create(storage={"size": "1Gi"}, trainer={"replicas": 2, "gpusPerReplica": 8})
            told = "it is told", lambda: world.condition("Blocked").get("reason") == "Unschedulable"
            await world.until(*told, _WAIT_S)
            wide, narrow = await asyncio.gather(
                echorl("why", "one", "-n", namespace, "-o", "json", kubeconfig=connection.kubeconfig),
                echorl("why", "one", "-o", "json", kubeconfig=alice),
            )
    assert wide.json()["why"].startswith(
        "one waits: one-trainer-0 and 1 more cannot be scheduled: 8 nvidia.com/gpu wanted, 3 free on 2 nodes"
    )
    texts = {one["of"]: one["text"] for one in wide.json()["evidence"]}
    assert texts[f"with {GPU}"] == f"{nodes[1]} 2 of 8 free, {nodes[0]} 1 of 8 free"
    assert "the scheduler: 0/3 nodes are available" in texts["one-trainer-0"]
    assert "one-trainer-0 and 1 more cannot be scheduled: 8 nvidia.com/gpu wanted; of 3 nodes, " in narrow.json()["why"]
    withheld = [one["text"] for one in narrow.json()["evidence"] if one["kind"] == "withheld"]
    assert withheld == ["not allowed to read leases, nodes"]


def _may_look_at_namespace(api: Api, namespace: str, user: str) -> None:
    groups = {
        "": ["pods", "events", "persistentvolumeclaims"],
        "apps": ["statefulsets", "deployments"],
        "echorl.dev": ["echorlruns"],
    }
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["get", "list"]} for group, names in groups.items()]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.create(f"{rbac}/roles", {"metadata": {"name": "look"}, "rules": rules})
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "look", "apiGroup": "rbac.authorization.k8s.io"}
    api.create(f"{rbac}/rolebindings", {"metadata": {"name": "look"}, "subjects": [subject], "roleRef": role})
