"""The real node: pods that run, names and addresses that work, and an end that leaves nothing."""

from collections.abc import Callable
from pathlib import Path

from echorl_testing.cluster import cgroups
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.node_config import KERNEL_TUNABLES
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.cluster.pods import pod, pod_when, succeeded
from echorl_testing.cluster.processes import wait_for


def test_a_real_pod_runs_is_found_by_name_and_shows_its_log(
    control_plane: Cluster, real_node: str, api: Api, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    serve = "echo hello > /tmp/index.html && echo serving && httpd -f -p 8080 -h /tmp"
    api.create(pods, pod("server", command=serve))
    service = {"ports": [{"port": 80, "targetPort": 8080}], "selector": {"app": "server"}}
    api.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "web"}, "spec": service})
    server = pod_when(api, f"{pods}/server", is_ready)
    assert server["spec"]["nodeName"] == real_node
    # Its container begins before its shell says anything.
    wait_for("it serves", lambda: "serving" in control_plane.kubectl("-n", namespace, "logs", "server"), seconds=120)
    assert "uid=10001" in control_plane.kubectl("-n", namespace, "exec", "server", "--", "id")

    # Not its own option -T: Debian's static busybox 1.35 crashes on it.
    get = f"timeout 3 wget -q -O - http://web.{namespace}.svc.cluster.local"
    ask = f"until {get}; do sleep 0.2; done; hostname > /dev/termination-log"
    api.create(pods, pod("client", command=ask))
    client = pod_when(api, f"{pods}/client", succeeded)
    assert "hello" in control_plane.kubectl("-n", namespace, "logs", "client")
    assert client["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "client\n"


def test_real_and_fake_nodes_share_the_work(
    real_node: str, api: Api, namespace: str, fake_nodes: Callable[..., list[str]]
) -> None:
    (gpu_node,) = fake_nodes(gpu=1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, pod("trainer", gpus=8))
    api.create(pods, pod("orchestrator", command="true"))
    assert pod_when(api, f"{pods}/trainer", is_ready)["spec"]["nodeName"] == gpu_node
    assert pod_when(api, f"{pods}/orchestrator", succeeded)["spec"]["nodeName"] == real_node


def test_the_real_node_changes_no_setting_of_the_machine_and_leaves_nothing(
    control_plane: Cluster, real_node: str, api: Api, namespace: str
) -> None:
    settings = [path for name in KERNEL_TUNABLES if (path := Path("/proc/sys") / name).exists()]
    before = [path.read_text() for path in settings]
    api.create(f"/api/v1/namespaces/{namespace}/pods", pod("sleeper"))
    pod_when(api, f"/api/v1/namespaces/{namespace}/pods/sleeper", is_ready)
    inside = [component.process for component in control_plane.node.components.values()]
    assert cgroups.exists(control_plane.layout.name)
    control_plane.node.stop()
    assert not any(process.alive for process in inside)
    assert not cgroups.exists(control_plane.layout.name)
    assert api.find(f"/api/v1/nodes/{real_node}") is None
    assert [path.read_text() for path in settings] == before
