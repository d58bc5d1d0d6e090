"""The test cluster itself: what starts, who may do what, where pods land, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from echorl_testing.cluster import cgroups, network, processes
from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.layout import NUMBERS, Layout
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.cluster.pods import GPU, pod, pod_when
from echorl_testing.cluster.processes import wait_for
from echorl_testing.load import stretched

SUPPORT = Path(__file__).resolve().parents[1] / "support"
DEADLINE_S = 120.0
STARTED_S = 10.0
"""A second cluster, on a machine that keeps up."""


def test_version_is_the_pinned_one(api: Api, control_plane: Cluster) -> None:
    assert api.get("/version")["gitVersion"] == "v1.36.3"
    assert "v1.36.3" in control_plane.kubectl("version", "--client")


def test_users_have_the_rights_that_a_role_gives_them(
    api: Api, connection: Connection, make_namespace: Callable[..., str]
) -> None:
    ours, others = make_namespace(), make_namespace()
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    api.create(f"{rbac}/{ours}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    team = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team-a"}
    binding = {"metadata": {"name": "readers"}, "roleRef": reference, "subjects": [team]}
    api.create(f"{rbac}/{ours}/rolebindings", binding)
    alice, bob = (Api(connection, token=connection.user_tokens[user]) for user in ("alice", "bob"))

    wait_for("alice may read", lambda: allowed(alice, ours), seconds=DEADLINE_S)
    assert not allowed(bob, ours)
    assert not allowed(alice, others)
    with pytest.raises(ApiError, match=r"alice.*cannot create") as refused:
        alice.create(f"/api/v1/namespaces/{ours}/configmaps", {"metadata": {"name": "x"}})
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")


def allowed(api: Api, namespace: str) -> bool:
    try:
        api.get(f"/api/v1/namespaces/{namespace}/configmaps")
    except ApiError as error:
        if error.code != 403:
            raise
        return False
    return True


def test_a_token_of_a_service_account_acts_as_it(
    control_plane: Cluster, connection: Connection, namespace: str
) -> None:
    token = control_plane.service_account_token(namespace, "default")
    me = Api(connection, token=token).create(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    assert me["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_a_frozen_component_goes_on_as_a_whole(control_plane: Cluster) -> None:
    before = control_plane.components["kwok"].process
    entry = processes.entry_of(before)
    assert entry is not None
    control_plane.stop_component("kwok", number=signal.SIGSTOP)
    assert processes.is_stopped(before)
    control_plane.stop_component("kwok", number=signal.SIGCONT)
    wait_for("both go on", lambda: not any(map(processes.is_stopped, (before, entry))), seconds=DEADLINE_S)
    assert before.alive

    control_plane.stop_component("kwok", number=signal.SIGSTOP)
    control_plane.stop_component("kwok")
    wait_for("nothing is left of it", lambda: not before.alive and not entry.alive, seconds=DEADLINE_S)
    control_plane.start_component("kwok")
    assert control_plane.components["kwok"].process != before


def test_secrets_of_the_cluster_are_for_root_only(connection: Connection, tmp_path: Path) -> None:
    mine = connection.write_kubeconfig(tmp_path / "alice", token=connection.user_tokens["alice"])
    assert {connection.kubeconfig.stat().st_mode & 0o777, mine.stat().st_mode & 0o777} == {0o600}
    assert connection.admin_token not in repr(connection)


def test_gpu_pods_land_on_fake_gpu_nodes_and_others_elsewhere(
    api: Api, namespace: str, fake_nodes: Callable[..., list[str]]
) -> None:
    gpu_node, cpu_node = fake_nodes(gpu=1, cpu=1, gpus=4)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name, gpus in (("trainer", 4), ("orchestrator", 0), ("too-much", 1)):
        api.create(pods, pod(name, gpus=gpus))
        if name != "too-much":
            placed = pod_when(api, f"{pods}/{name}", is_ready)
            assert placed["spec"]["nodeName"] == (gpu_node if gpus else cpu_node)
    waiting = pod_when(api, f"{pods}/too-much", lambda found: bool(found["status"].get("conditions")))
    assert f"Insufficient {GPU}" in waiting["status"]["conditions"][0]["message"]
    address = api.get(f"{pods}/trainer")["status"]["podIP"]
    assert address.startswith("10.")


def test_a_statefulset_comes_up_and_its_pods_return(
    api: Api, namespace: str, fake_nodes: Callable[..., list[str]]
) -> None:
    fake_nodes(gpu=2)
    apps = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod("x", gpus=8)["spec"] | {"restartPolicy": "Always"}}
    spec = {"serviceName": "x", "replicas": 2, "podManagementPolicy": "Parallel", "template": template}
    api.create(apps, {"metadata": {"name": "x"}, "spec": spec | {"selector": {"matchLabels": {"app": "x"}}}})
    wait_for("both pods", lambda: api.get(f"{apps}/x")["status"].get("readyReplicas") == 2, seconds=DEADLINE_S)
    first = f"/api/v1/namespaces/{namespace}/pods/x-0"
    before = api.get(first)
    uid = before["metadata"]["uid"]
    api.delete(first)
    wait_for(
        "another x-0",
        lambda: (api.find(first) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
        seconds=DEADLINE_S,
    )


def test_an_api_server_that_was_killed_comes_back_with_its_objects(
    control_plane: Cluster, api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    control_plane.stop_component("kube-apiserver")
    assert not api.healthy()
    control_plane.ensure_control_plane()
    assert api.get(f"{path}/kept")["data"] == {"a": "b"}


def members(cluster: Cluster) -> list[processes.ProcessId]:
    """Every living process in the cluster's network namespace."""
    namespace = Path(f"/proc/{cluster.sandbox.init.pid}/ns/net").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            inside = entry.name.isdigit() and (entry / "ns/net").readlink() == namespace
        except OSError:
            continue
        if inside and (process := processes.identify(int(entry.name))):
            found.append(process)
    return found


def leftovers(layout: Layout) -> list[str]:
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if f"{layout.folder}/" in line]
    found = {
        "folder": layout.folder.exists(),
        "link": network.link_exists(layout),
        "cgroup": cgroups.exists(layout.name),
    }
    return [name for name, there in found.items() if there] + mounts


def test_when_its_owner_is_killed_the_cluster_ends_and_the_next_one_starts_fast_in_its_place_and_leaves_nothing(
    control_plane: Cluster,
) -> None:
    code = (
        "from echorl_testing.cluster import cluster as clusters\n"
        "cluster = clusters.start(tethered=True)\n"
        "print(cluster.layout.number, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert owner.stdout is not None
        number = int(owner.stdout.readline())
        killed = clusters.find(number)
        assert killed is not None
        inside = members(killed)
        assert len(inside) >= 6
    finally:
        owner.kill()
        owner.communicate(timeout=30)
    wait_for("end of every process", lambda: not any(process.alive for process in inside), seconds=DEADLINE_S)
    assert clusters.find(number) is None
    assert killed.layout.folder.exists()

    began = time.monotonic()
    second = clusters.start(tethered=True, numbers=[number])
    took = time.monotonic() - began
    try:
        second.api.create("/api/v1/namespaces", {"metadata": {"name": "only-there"}})
        assert control_plane.api.find("/api/v1/namespaces/only-there") is None
        with pytest.raises(ApiError, match="401"):
            Api(second.connection, token=control_plane.connection.admin_token).get("/api/v1/namespaces")
        inside = members(second)
        assert len(inside) >= 6
    finally:
        second.stop()
    assert took < stretched(STARTED_S)
    assert not any(process.alive for process in inside)
    assert leftovers(second.layout) == []
    assert control_plane.api.healthy()


def test_a_component_that_refuses_to_start_is_shown_with_its_log_and_nothing_is_left() -> None:
    last = Layout(NUMBERS[-1])
    # On a busy machine it has ended before it is looked at for the first time.
    message = r"(?s)kube-apiserver (did not start: process \d+ )?ended.*unknown flag: --no-such-flag"
    with pytest.raises(ClusterError, match=message) as failed:
        clusters.start(tethered=True, apiserver_arguments=["--no-such-flag"], numbers=[last.number])
    assert "kube-apiserver.log" in str(failed.value)
    assert leftovers(last) == []
