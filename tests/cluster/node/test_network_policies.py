"""Who reaches whom, tried from inside real pods while the node holds them to the policies of the chart and of runs."""

import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from echorl_broker.profile import Owner, sandbox_pod
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_manifest import load
from echorl_operator.children import assembly as build
from echorl_operator.children.overlay_rules import POD_INDEX
from echorl_operator.children.rendering import Rendering
from echorl_operator.names import LABEL_ROLE, LABEL_RUN_UID
from echorl_operator.settings_file import settings_of
from echorl_testing.cluster import pods
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.cluster.policy_enforcement import PolicyEnforcement, enforced_policies
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.policy_rules import CHAIN
from echorl_testing.manifests.documents import with_name

pytestmark = pytest.mark.timeout(600)

PORTS = (7070, 8000, 8090, 8100, 8200, 9090, 29500)
"""Daemons, engines, the broker, orchestrators, trainers, metrics, collectives. Every pod answers at all of them."""
WORLD_PORTS = (443, 8443)
GAMES = {"train": [{"name": "wordle", "type": "openenv:registry.example.org/games/wordle:1"}]}
PATIENCE_S = 120.0
SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
Reached = set[tuple[str, str]]


@dataclass
class Stage:
    """Pods of two runs, of an installation and of others, by name: namespace and address."""

    cluster: Cluster
    places: dict[str, tuple[str, str]]

    def reached(self, source: str, targets: Mapping[str, str]) -> Reached:
        """Which of the targets (address and port by name) a pod can connect to."""
        namespace, _ = self.places[source]
        tried = "\n".join(f"try {shlex.quote(name)} {address}" for name, address in targets.items())
        script = 'try() { nc -w 2 "${2%:*}" "${2#*:}" -e true >/dev/null 2>&1 && echo "$1" & }\n'
        told = self.cluster.kubectl("-n", namespace, "exec", source, "--", "sh", "-c", f"{script}{tried}\nwait")
        return {(source, name) for name in told.split()}

    def targets(self) -> dict[str, str]:
        """All that may be tried: every port of every pod, the API server, cluster DNS, the world."""
        layout = self.cluster.layout
        found = {f"{name}:{port}": f"{ip}:{port}" for name, (_, ip) in self.places.items() for port in PORTS}
        found |= {"api": f"{layout.api_service_address}:443", "dns": f"{layout.dns_service_address}:53"}
        return found | {f"world:{port}": f"{layout.host_address}:{port}" for port in WORLD_PORTS}


def expected() -> Reached:
    """Written by hand, from the tables of docs/install.md and docs/operator/children.md."""
    found = {("orchestrator", name) for name in ("engine:8000", "server:8000", "agent-box:7070", "grader-box:7070")}
    found |= {("orchestrator", "broker:8090")}
    found |= {("other-orchestrator", "broker:8090"), ("agent", "orchestrator:8100")}
    found |= {("engine", "trainer-0:8200"), ("engine", "trainer-1:8200")}
    found |= {(f"trainer-{one}", f"trainer-{1 - one}:{port}") for one in (0, 1) for port in PORTS}
    found |= {(name, "orchestrator:8100") for name in ("trainer-0", "trainer-1", "agent-box", "operator")}
    found |= {("operator", "other-orchestrator:8100"), ("operator", "api"), ("broker", "api")}
    scraped = ("orchestrator:8100", "other-orchestrator:8100", "engine:8000", "trainer-0:8200", "trainer-1:8200")
    found |= {("prometheus", name) for name in (*scraped, "operator:9090", "broker:9090")}
    of_runs = {"orchestrator", "other-orchestrator", "engine", "trainer-0", "trainer-1", "prepare"}
    found |= {(name, "dns") for name in of_runs | {"agent", "operator"}}
    found |= {(name, "world:8443") for name in of_runs - {"engine"}} | {("prepare", "world:443")}
    # Nobody restricts these but those whom they call.
    free = ("prometheus", "neighbour", "false-operator", "impostor")
    found |= {(one, f"{other}:{port}") for one in free for other in free for port in PORTS if one != other}
    return found | {(one, name) for one in free for name in ("api", "dns", "world:443", "world:8443")}


def labels_of(rendering: Rendering) -> dict[str, dict[str, str]]:
    """Those of a run's pods, as operator and broker make them."""
    trainer = build.trainer_set(rendering, 1, 2)["spec"]["template"]["metadata"]["labels"]
    owner = Owner(rendering.namespace, rendering.run, rendering.uid, "1", "uid-of-its-orchestrator")
    settings = BrokerSettings(daemon_image="echorl/sandbox-daemon:1")

    def box(key: str, *, gateway: bool) -> dict[str, str]:
        limits = Limits(cpu=1.0, memory_bytes=1 << 28, disk_bytes=1 << 28, processes=8)
        wanted = Wanted(run_uid=owner.uid, image="x", workdir="/x", limits=limits, ttl_s=9.0, gateway=gateway)
        made: dict[str, str] = sandbox_pod(owner, key, wanted, settings, nonce="1", token_sha256="1")["metadata"][
            "labels"
        ]
        return made

    server = next(body for body in build.common(rendering) if body["kind"] == "Deployment")
    return {
        "server": server["spec"]["template"]["metadata"]["labels"],
        "orchestrator": build.orchestrator_pod(rendering, 1)["metadata"]["labels"],
        "engine": build.inference_deployment(rendering, 1)["spec"]["template"]["metadata"]["labels"],
        "prepare": build.prepare_pod(rendering, 1)["metadata"]["labels"],
        # The StatefulSet's controller adds the number.
        **{f"trainer-{index}": {**trainer, POD_INDEX: str(index)} for index in (0, 1)},
        "agent": {LABEL_RUN_UID: rendering.uid, LABEL_ROLE: "agent"},
        "agent-box": box("agent", gateway=True),
        "grader-box": box("grader", gateway=False),
    }


@pytest.fixture
def world(control_plane: Cluster, real_node: str) -> Iterator[None]:
    """This machine answers at the ports that a hub and a run's own servers would have."""
    with ExitStack() as stack:
        for port in WORLD_PORTS:
            stack.enter_context(socket.create_server((control_plane.layout.host_address, port), backlog=128))
        yield


@pytest.fixture
def stage(
    control_plane: Cluster,
    api: Api,
    release: Callable[..., str],
    make_namespace: Callable[..., str],
    real_node: str,
    world: None,
) -> Stage:
    """The chart is installed for a namespace with two runs; pods that do nothing but answer stand for all of them."""
    research, monitoring, elsewhere = make_namespace(), make_namespace(), make_namespace()
    node = f"{control_plane.layout.node_address}/32"
    values = {
        "watch": {"namespaces": [research]},
        "sandboxes": {"enabled": True},
        # This test plays the operator as the admin.
        "admissionPolicies": {"enabled": False},
        "networkPolicy": {"apiServer": {"cidrs": [node]}},
        "settings": {
            "dns": {"cidrs": [node]},
            "monitoring": {"namespaceLabels": {"kubernetes.io/metadata.name": monitoring}},
        },
    }
    system = release(values)
    held = api.get(f"/api/v1/namespaces/{system}/configmaps/echorl-operator-settings")
    settings = settings_of(held["data"]["settings.yaml"], "the chart's settings")
    labels: dict[str, tuple[str, Mapping[str, str]]] = {}
    for name, prefix in (("one", ""), ("two", "other-")):
        rule = {"to": [{"ipBlock": {"cidr": f"{control_plane.layout.host_address}/32"}}], "ports": [{"port": 8443}]}
        blocks = {"sandboxes": {"provider": "pod"}, "egress": [rule], "environments": GAMES}
        document = with_name(name, trainer={"replicas": 2}, **blocks)
        made = api.create(f"/apis/echorl.dev/v1alpha1/namespaces/{research}/echorlruns", document)
        rendering = build.render(
            load(document), uid=made["metadata"]["uid"], namespace=research, generation=1, settings=settings
        )
        policies = f"/apis/networking.k8s.io/v1/namespaces/{research}/networkpolicies"
        for body in build.common(rendering):
            if body["kind"] == "NetworkPolicy":
                api.apply(f"{policies}/{body['metadata']['name']}", body)
        labels |= {f"{prefix}{role}": (research, own) for role, own in labels_of(rendering).items()}
    kept = {name: one for name, one in labels.items() if not name.startswith("other-")}
    kept["other-orchestrator"] = labels["other-orchestrator"]
    for component in ("operator", "broker"):
        template = api.get(f"/apis/apps/v1/namespaces/{system}/deployments/echorl-{component}")["spec"]["template"]
        kept[component] = (system, template["metadata"]["labels"])
    kept["prometheus"] = (monitoring, {"app": "prometheus"})
    kept["neighbour"] = (research, {"app": "notebook"})
    kept["false-operator"] = (research, kept["operator"][1])
    kept["impostor"] = (elsewhere, kept["orchestrator"][1])
    return Stage(control_plane, started(api, kept))


def started(api: Api, labels: Mapping[str, tuple[str, Mapping[str, str]]]) -> dict[str, tuple[str, str]]:
    """Make a pod for each; namespace and address of each, once all answer."""
    serve = " && ".join(f"httpd -p {port} -h /tmp" for port in PORTS)
    for name, (namespace, own) in labels.items():
        body = pods.pod(name, command=f"{serve} && exec sleep 3600")
        body["metadata"]["labels"] = dict(own)
        body["spec"]["containers"][0]["securityContext"] = SECURITY
        api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    found = {}
    for name, (namespace, _) in labels.items():
        pod = pods.pod_when(api, f"/api/v1/namespaces/{namespace}/pods/{name}", is_ready, PATIENCE_S)
        found[name] = (namespace, str(pod["status"]["podIP"]))
    return found


def chains(cluster: Cluster) -> list[str]:
    return [line for line in cluster.sandbox.run("iptables", "-w", "-S").splitlines() if CHAIN in line]


def test_pods_reach_what_the_tables_say_and_nothing_else(stage: Stage, control_plane: Cluster) -> None:
    targets, wanted = stage.targets(), expected()
    closed = {"engine:8000": targets["engine:8000"], "grader-box:7070": targets["grader-box:7070"]}

    def is_open() -> bool:
        return stage.reached("neighbour", closed) == {("neighbour", name) for name in closed}

    wait_for("without enforcement everybody is reached", is_open, seconds=PATIENCE_S)
    with enforced_policies(control_plane) as enforcement:
        found: Reached = set()
        for source in stage.places:
            others = {name: one for name, one in targets.items() if name.partition(":")[0] != source}
            found |= stage.reached(source, others)
        assert found <= wanted, f"reached, and should not be: {sorted(found - wanted)}"
        for source, name in sorted(wanted - found):
            # On a busy machine an answer may come late.
            one = {name: targets[name]}
            wait_for(f"{source} reaches {name}", lambda one=one, of=source: bool(stage.reached(of, one)), seconds=20.0)
        follows(stage, enforcement)
    assert chains(control_plane) == []
    wait_for("without enforcement everybody is reached again", is_open, seconds=PATIENCE_S)


def follows(stage: Stage, enforcement: PolicyEnforcement) -> None:
    """A pod that takes a role's labels may what that role may, as soon as it has them."""
    namespace, _ = stage.places["neighbour"]
    run, box = stage.places["agent"], {"orchestrator:8100": stage.targets()["orchestrator:8100"]}
    assert run[0] == namespace
    pods_path = f"/api/v1/namespaces/{namespace}/pods"
    labels = stage.cluster.api.get(f"{pods_path}/agent")["metadata"]["labels"]
    assert not stage.reached("neighbour", box)
    stage.cluster.api.patch(f"{pods_path}/neighbour", {"metadata": {"labels": labels}})
    enforcement.settle()
    wait_for("as the agent it is answered", lambda: bool(stage.reached("neighbour", box)), seconds=PATIENCE_S)


def test_nothing_is_left_of_rules_when_a_test_fails(control_plane: Cluster, real_node: str) -> None:
    def fail() -> None:
        assert chains(control_plane)
        raise RuntimeError("as a test fails")

    with pytest.raises(RuntimeError, match="as a test fails"), enforced_policies(control_plane):
        fail()
    assert chains(control_plane) == []
