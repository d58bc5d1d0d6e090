"""Pods on their node's network, and with its cards for RDMA."""

import re

import pytest

from echorl_operator.children import common
from echorl_operator.settings import Settings
from echorl_testing.kube.netpol import Peer, allowed
from echorl_testing.kube.pod_security import violations
from echorl_testing.manifests.documents import with_value
from echorl_testing.operator.rendered import NAMESPACE, SETTINGS, UID, manifest, rendered
from echorl_testing.operator.role_pods import env, main, overlaid, specs

NODES = "10.40.0.0/24"
ALLOWED = SETTINGS.model_copy(update={"host_network_cidrs": (NODES,)})
RDMA = {"resource": "rdma/hca_shared_devices_a", "count": 2, "hcas": ["mlx5_0", "mlx5_1:1"]}


def with_network(role, network, document=None):
    return with_value(document or manifest("two-pods"), f"spec.{role}.network", network)


@pytest.mark.parametrize("role", ["trainer", "inference"])
def test_who_may_not_is_told_which_value_allows_it(role):
    told = (
        f"spec.{role}.network.host: this installation has no run on a node's network: settings.hostNetworkCidrs of "
        "charts/echorl has no addresses; found true; accepted: false"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        rendered(with_network(role, {"host": True}))


def test_a_gang_on_its_nodes_network_takes_its_ports_there_and_knows_names_of_the_cluster():
    document = with_network("trainer", {"host": True})
    found = specs(document, settings=ALLOWED)
    assert [role for role, spec in found.items() if spec.get("hostNetwork")] == ["trainer"]
    trainer = found["trainer"]
    assert trainer["dnsPolicy"] == "ClusterFirstWithHostNet"
    ports = main(trainer)["ports"]
    assert all(port["hostPort"] == port["containerPort"] for port in ports)
    # Eight ranks, and where the gang meets.
    assert [port["hostPort"] for port in ports] == [*range(8200, 8208), 29500, 29501]
    service = next(one for one in common(rendered(document, settings=ALLOWED)) if one["kind"] == "Service")
    assert [port["port"] for port in service["spec"]["ports"]] == list(range(8200, 8208))
    pods = [spec for role, spec in found.items() if role != "trainer"]
    assert not any("hostPort" in port for spec in pods for port in main(spec).get("ports", ()))


def test_engines_on_their_nodes_network():
    spec = specs(with_network("inference", {"host": True}), settings=ALLOWED)["inference"]
    assert (spec["hostNetwork"], main(spec)["ports"]) == (
        True,
        [{"name": "http", "containerPort": 8000, "protocol": "TCP", "hostPort": 8000}],
    )


def test_a_containers_ports_of_the_users_own_are_the_nodes_too():
    sidecar = {"name": "exporter", "image": "x", "ports": [{"containerPort": 9400}]}
    template = {"spec": {"containers": [sidecar], "initContainers": [{**sidecar, "name": "first"}]}}
    document = with_value(with_network("trainer", {"host": True}), "spec.trainer.template", template)
    spec = specs(document, settings=ALLOWED)["trainer"]
    (own,) = (one for one in spec["containers"] if one["name"] == "exporter")
    assert own["ports"] == spec["initContainers"][0]["ports"] == [{"containerPort": 9400, "hostPort": 9400}]


def test_what_is_outside_restricted_is_the_network_and_its_ports_alone():
    """Still no root, no privilege, no writable root file system, no token."""
    spec = specs(with_network("trainer", {"host": True}), settings=ALLOWED)["trainer"]
    assert violations(spec) == ["hostNetwork is set", "trainer: takes a port of its node"]
    assert main(spec)["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("role", ["trainer", "inference"])
def test_cards_need_no_permission_and_bring_one_capability(role):
    spec = specs(with_network(role, {"rdma": RDMA}))[role]
    for part in ("requests", "limits"):
        assert main(spec)["resources"][part]["rdma/hca_shared_devices_a"] == "2"
    assert violations(spec) == [f"{role}: adds IPC_LOCK"]
    assert main(spec)["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"], "drop": ["ALL"]}
    assert env(spec)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1:1"
    others = [spec for other, spec in specs(with_network(role, {"rdma": RDMA})).items() if other != role]
    assert all(violations(other) == [] for other in others)


def test_nccl_and_gloo_are_told_the_interface_and_a_template_has_the_last_word():
    document = with_network("trainer", {"interface": "eth0"})
    found = env(specs(document)["trainer"])
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert "NCCL_SOCKET_IFNAME" not in env(specs(document)["inference"])
    over = overlaid(document, "trainer", {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "^docker"}]})
    assert env(specs(over)["trainer"])["NCCL_SOCKET_IFNAME"] == "^docker"


def peers_of(document, settings):
    """What connects to what, among two ranks, an engine, the orchestrator and a stranger on a node, at some ports."""
    policies = [one for one in rendered(document, settings=settings).common if one["kind"] == "NetworkPolicy"]
    on_host = {role for role, spec in specs(document, settings=settings).items() if spec.get("hostNetwork")}

    def peer(name, role, ip, **labels):
        if role in on_host:
            # Of such a pod a plug-in sees the node's address alone.
            return Peer(name, ip=ip)
        return Peer(name, NAMESPACE, {"echorl.dev/run-uid": UID, "echorl.dev/role": role, **labels})

    peers = [
        *(
            peer(f"rank-{index}", "trainer", f"10.40.0.{index}", **{"apps.kubernetes.io/pod-index": str(index)})
            for index in (0, 1)
        ),
        peer("engine", "inference", "10.40.0.9"),
        peer("orchestrator", "orchestrator", "10.40.0.1"),
        Peer("elsewhere", ip="10.41.0.1"),
    ]
    return {
        (source.name, target.name, port)
        for source in peers
        for target in peers
        for port in (8000, 8100, 8200, 29777)
        if source is not target and allowed(policies, source, target, port)
    }


NEEDED = {
    ("rank-0", "orchestrator", 8100),
    ("rank-1", "orchestrator", 8100),
    ("rank-0", "rank-1", 29777),
    ("orchestrator", "engine", 8000),
    ("engine", "rank-0", 8200),
    ("engine", "rank-0", 29777),
    ("rank-0", "engine", 29777),
}


@pytest.mark.parametrize("roles", [("trainer",), ("inference",), ("trainer", "inference")])
def test_policies_let_pods_reach_those_on_nodes_and_be_reached_by_them(roles):
    """The ends that keep an address of their own would be cut off, as a policy's labels select no node."""
    document = with_value(manifest("two-pods"), "spec.weightTransfer.mode", "nccl")
    assert peers_of(document, ALLOWED) >= NEEDED
    for role in roles:
        document = with_network(role, {"host": True}, document)
    found = peers_of(document, ALLOWED)
    assert found >= NEEDED
    on_nodes = {"trainer": {"rank-0", "rank-1"}, "inference": {"engine"}}
    held = {"orchestrator", "rank-0", "rank-1", "engine"}.difference(*(on_nodes[role] for role in roles))
    assert not {one for one in found if one[0] == "elsewhere" and one[1] in held}
    assert not {one for one in found if one[1] == "orchestrator" and one[2] != 8100}


def test_policies_of_runs_that_are_on_no_node_name_none():
    assert NODES not in str(rendered(manifest("two-pods"), settings=ALLOWED).common)


def test_addresses_that_are_none_are_refused_with_the_settings():
    for wrong in ("10.40.0.0", "10.40.0.1/24", "nodes/8"):
        with pytest.raises(ValueError, match=r"hostNetworkCidrs"):
            Settings.model_validate({"operatorVersion": "1", "hostNetworkCidrs": [wrong]})
    assert Settings.model_validate({"operatorVersion": "1", "hostNetworkCidrs": ["fd00::/64"]}).host_network_cidrs
