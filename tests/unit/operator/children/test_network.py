"""NetworkPolicies: every arrow is allowed at both ends, and every other connection is denied."""

from itertools import permutations

import pytest

from echorl_core.problem import Problem
from echorl_operator.children import arrows
from echorl_operator.children.network import egress_problems
from echorl_testing.kube.netpol import Peer, allowed
from echorl_testing.manifests.documents import shortest, with_value
from echorl_testing.operator.rendered import NAMESPACE, SETTINGS, UID, manifest, rendered

OTHER_UID = "00000000-aaaa-bbbb-cccc-000000000000"


def pod(name, role, *, uid=UID, namespace=NAMESPACE, **labels):
    own = {"echorl.dev/run-uid": uid, "echorl.dev/role": role, "echorl.dev/run": "two-pods"}
    return Peer(name, namespace, {**own, **labels})


def rank_pod(index, uid=UID):
    return pod(f"trainer-{index}", "trainer", uid=uid, **{"apps.kubernetes.io/pod-index": str(index)})


OPERATOR_LABELS = {"app.kubernetes.io/name": "echorl", "app.kubernetes.io/component": "operator"}
PEERS = [
    rank_pod(0),
    rank_pod(1),
    pod("engine", "inference"),
    pod("orchestrator", "orchestrator"),
    pod("prepare", "prepare"),
    pod("agent", "agent"),
    Peer("operator", "echorl-system", OPERATOR_LABELS),
    Peer("prometheus", "monitoring", {"app": "prometheus"}),
    Peer("dns", "kube-system", {"k8s-app": "kube-dns"}),
    Peer("neighbour", NAMESPACE, {"app": "notebook"}),
    Peer("false-operator", NAMESPACE, OPERATOR_LABELS),
    Peer("false-dns", NAMESPACE, {"k8s-app": "kube-dns"}),
    pod("orchestrator-of-other-run", "orchestrator", uid=OTHER_UID),
    pod("engine-of-other-run", "inference", uid=OTHER_UID),
    pod("same-run-elsewhere", "orchestrator", namespace="elsewhere"),
    Peer("internet", ip="93.184.216.34"),
    Peer("cluster-outside", ip="10.20.1.1"),
]
RUN = {"trainer-0", "trainer-1", "engine", "orchestrator", "prepare", "agent"}
PORTS = [("TCP", number) for number in (22, 53, 443, 8000, 8100, 8200, 8201, 8207, 8208, 8443, 29500)] + [("UDP", 53)]


def expected():
    """Written by hand, from the architecture's table; not from the code's arrows."""
    trainers = ("trainer-0", "trainer-1")
    found = {("orchestrator", "engine", "TCP", 8000)}
    found |= {("engine", trainer, "TCP", port) for trainer in trainers for port in (8200, 8201, 8207)}
    found |= {(trainer, "orchestrator", "TCP", 8100) for trainer in trainers}
    found |= {(a, b, protocol, port) for a in trainers for b in trainers for protocol, port in PORTS}
    found |= {("agent", "orchestrator", "TCP", 8100), ("operator", "orchestrator", "TCP", 8100)}
    found |= {("prometheus", "orchestrator", "TCP", 8100), ("prometheus", "engine", "TCP", 8000)}
    found |= {("prometheus", trainer, "TCP", port) for trainer in trainers for port in (8200, 8201, 8207)}
    found |= {(name, "dns", protocol, 53) for name in RUN for protocol in ("TCP", "UDP")}
    # The hub, by HTTPS to any address: policies know no names. Inside a run the callee's side still denies it.
    others = {peer.name for peer in PEERS} - RUN - {"orchestrator-of-other-run", "engine-of-other-run"}
    found |= {("prepare", name, "TCP", 443) for name in others}
    found |= {(name, "cluster-outside", "TCP", 8443) for name in (*trainers, "orchestrator", "prepare")}
    return found


def policies_of(document, uid=UID):
    return [body for body in rendered(document, uid=uid).common if body["kind"] == "NetworkPolicy"]


def test_exactly_the_arrows_are_allowed():
    document = manifest("two-pods")
    policies = [*policies_of(document), *policies_of(document, OTHER_UID)]
    checked = [(a, b) for a in PEERS for b in PEERS if a.name in RUN or b.name in RUN]
    found = {
        (source.name, target.name, protocol, port)
        for source, target in checked
        for protocol, port in PORTS
        if (source is not target or source.name.startswith("trainer"))
        and allowed(policies, source, target, port, protocol)
    }
    assert found == expected()


BROKERED = SETTINGS.model_copy(update={"broker_url": "http://echorl-broker.echorl-system.svc:8090"})
BROKER_LABELS = {"app.kubernetes.io/name": "echorl", "app.kubernetes.io/component": "broker"}


def test_sandboxes_reach_the_gateway_if_they_may_and_nothing_else():
    document = with_value(manifest("two-pods"), "spec.sandboxes", {"provider": "pod"})
    policies = [
        body
        for uid in (UID, OTHER_UID)
        for body in rendered(document, settings=BROKERED, uid=uid).common
        if body["kind"] == "NetworkPolicy"
    ]
    agent = pod("agent-box", "sandbox", **{"echorl.dev/gateway": "allowed"})
    grader, foreign = pod("grader-box", "sandbox"), pod("foreign-box", "sandbox", uid=OTHER_UID)
    broker = Peer("broker", "echorl-system", BROKER_LABELS)
    peers = [*PEERS, agent, grader, foreign, broker, Peer("false-broker", NAMESPACE, BROKER_LABELS)]
    boxes, ports = {"agent-box", "grader-box"}, [*PORTS, ("TCP", 7070), ("TCP", 8090)]
    found = {
        (source.name, target.name, port)
        for source in peers
        for target in peers
        for protocol, port in ports
        if source is not target
        and ({source.name, target.name} & (boxes | {"broker", "false-broker"}))
        and (source.name in RUN | boxes or target.name in RUN | boxes)
        and port not in {53, 443, 8443}
        and allowed(policies, source, target, port, protocol)
    }
    assert found == {
        ("orchestrator", "agent-box", 7070),
        ("orchestrator", "grader-box", 7070),
        ("agent-box", "orchestrator", 8100),
        ("orchestrator", "broker", 8090),
    }
    closed = {
        (source.name, target.name)
        for source in (agent, grader)
        for target in peers
        for protocol, port in ports
        if source is not target and allowed(policies, source, target, port, protocol)
    }
    assert closed == {("agent-box", "orchestrator")}, "no names, no API server, no other sandbox, no world"


def test_a_server_of_an_environment_is_reached_by_its_orchestrator_and_reaches_nothing():
    policies = [*policies_of(manifest("games")), *policies_of(manifest("games"), OTHER_UID)]
    server, foreign = pod("server", "environment"), pod("foreign-server", "environment", uid=OTHER_UID)
    peers = [*PEERS, server, foreign]
    found = {
        (source.name, target.name, protocol, port)
        for source in peers
        for target in peers
        for protocol, port in PORTS
        if source is not target and server in (source, target) and allowed(policies, source, target, port, protocol)
    }
    assert found == {("orchestrator", "server", "TCP", 8000)}
    assert not any("anywhere" in line and "environments" in line for line in lines(manifest("games")))


def test_without_sandboxes_in_pods_nothing_is_said_of_them():
    for sandboxes in (None, {"provider": "process"}):
        document = shortest() if sandboxes is None else with_value(shortest(), "spec.sandboxes", sandboxes)
        assert not any("sandbox" in line or "broker" in line for line in lines(document, BROKERED))


def test_every_pod_of_a_run_is_closed_by_default():
    """Also one of a role that has no policy of its own."""
    policies = policies_of(shortest())
    stray, other = pod("stray", "unknown"), Peer("any", NAMESPACE)
    assert not allowed(policies, stray, other, 443)
    assert not allowed(policies, other, stray, 443)
    assert allowed(policies, other, Peer("third", NAMESPACE), 443)


def lines(document, settings=SETTINGS):
    return [str(arrow) for arrow in arrows(rendered(document, settings=settings))]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "inference -> trainer (TCP/8200-8207): new weights"),
        ({"spec.weightTransfer.mode": "auto"}, "inference -> trainer (TCP/8200-8207): new weights"),
        ({"spec.trainer.parallel": {"replicate": 2}}, "inference -> trainer (TCP/8200-8207): new weights"),
        ({"spec.trainer.parallel": {"replicate": 16}}, "inference -> trainer-0 (TCP/8200): new weights"),
        ({"spec.model.lora": {"rank": 8, "alpha": 16}}, "inference -> trainer-0 (TCP/8200): new weights"),
        ({"spec.weightTransfer.mode": "nccl"}, "inference -> trainer (TCP/8200-8207): new weights"),
    ],
)
def test_engines_reach_every_rank_that_may_serve_weights_and_no_other(changes, line):
    document = manifest("two-pods")
    for path, value in changes.items():
        document = with_value(document, path, value)
    assert [found for found in lines(document) if found.endswith("new weights")] == [line]


def test_engines_need_no_trainer_when_weights_come_by_disk():
    assert "inference -> trainer-0 (TCP/8200): new weights" in lines(shortest())
    assert not any("new weights" in line for line in lines(with_value(shortest(), "spec.weightTransfer.mode", "disk")))


def test_members_of_a_broadcast_reach_each_other_at_any_port():
    members = ("trainer-0", "engine", "second-engine")
    peers = [*(peer for peer in PEERS if peer.name in RUN), pod("second-engine", "inference")]
    for mode, on_gpus, replicas, opened in (
        ("nccl", False, 1, (*members, "trainer-1")),
        ("nccl", False, 2, members),
        ("auto", True, 1, (*members, "trainer-1")),
        ("auto", False, 1, ()),
        ("http", True, 1, ()),
    ):
        document = with_value(manifest("two-pods"), "spec.weightTransfer.mode", mode)
        document = with_value(document, "spec.trainer.parallel", {"replicate": replicas})
        if not on_gpus:
            document = with_value(document, "spec.trainer.gpusPerReplica", 0)
        policies = policies_of(document)
        found = {
            (source.name, target.name)
            for source in peers
            for target in peers
            if source is not target and allowed(policies, source, target, 29777)
        }
        trainers = {("trainer-0", "trainer-1"), ("trainer-1", "trainer-0")}
        assert found - trainers == set(permutations(opened, 2)) - trainers


def test_a_model_on_the_volume_needs_no_hub():
    assert "prepare -> anywhere (TCP/443): fetching the model" in lines(shortest())
    on_volume = with_value(shortest(), "spec.model.name", "/models/policy")
    assert not any("fetching" in line for line in lines(on_volume))


@pytest.mark.parametrize(
    ("endpoint", "arrow"),
    [
        ("http://hub.example.org", "prepare -> anywhere (TCP/80): fetching the model"),
        ("https://hub.example.org:8443/base", "prepare -> anywhere (TCP/8443): fetching the model"),
        ("http://10.1.2.3:9000", "prepare -> 10.1.2.3/32 (TCP/9000): fetching the model"),
        ("https://[fd00::1]", "prepare -> fd00::1/128 (TCP/443): fetching the model"),
    ],
)
def test_ports_and_addresses_of_a_mirror(endpoint, arrow):
    assert arrow in lines(shortest(), SETTINGS.model_copy(update={"hub_endpoint": endpoint}))


def test_a_mirror_at_an_address_is_reached_there_alone():
    settings = SETTINGS.model_copy(update={"hub_endpoint": "http://10.20.1.1:9000"})
    policies = [body for body in rendered(shortest(), settings=settings).common if body["kind"] == "NetworkPolicy"]
    prepare = pod("prepare", "prepare")
    assert allowed(policies, prepare, Peer("mirror", ip="10.20.1.1"), 9000)
    assert not allowed(policies, prepare, Peer("other", ip="10.20.1.2"), 9000)


@pytest.mark.parametrize(
    ("wandb", "arrow"),
    [
        ({"project": "p"}, "orchestrator -> anywhere (TCP/443): Weights & Biases"),
        (
            {"project": "p", "baseUrl": "https://wandb.example.com:8443"},
            "orchestrator -> anywhere (TCP/8443): Weights & Biases",
        ),
        (
            {"project": "p", "baseUrl": "http://10.20.1.1:9000"},
            "orchestrator -> 10.20.1.1/32 (TCP/9000): Weights & Biases",
        ),
        ({"project": "p", "mode": "offline"}, None),
        ({}, None),
    ],
)
def test_wandb_is_reached_only_where_the_run_is_online_there(wandb, arrow):
    found = [line for line in lines(with_value(shortest(), "spec.monitors", {"wandb": wandb})) if "Weights" in line]
    assert found == ([] if arrow is None else [arrow])


def test_egress_rules_that_are_none():
    assert egress_problems([{"to": [], "ports": [{"port": 443}]}, {}]) == []
    problems = egress_problems([{"from": []}, {"to": "anywhere"}])
    assert [problem.path for problem in problems] == ["spec.egress[0].from", "spec.egress[1].to"]
    good = {"ipBlock": {"cidr": "2001:db8::/64", "except": ["2001:db8::1/128"]}}
    wrong = {"ipBlock": {"cidr": "10.0.0.1", "except": ["10.0.0.0/8", "10.0.0.0/33"]}}
    problems = egress_problems([{"to": [{"podSelector": {}}, good, wrong]}, {"to": [{"ipBlock": {}}]}])
    assert [problem.path for problem in problems] == [
        "spec.egress[0].to[2].ipBlock.cidr",
        "spec.egress[0].to[2].ipBlock.except[1]",
        "spec.egress[1].to[0].ipBlock.cidr",
    ]
    assert isinstance(problems[0], Problem)
    with pytest.raises(ValueError, match=r"spec\.egress\[0\]\.cidr"):
        rendered(with_value(shortest(), "spec.egress", [{"cidr": "10.0.0.0/8"}]))


def test_the_teacher_is_reached_by_the_orchestrator_alone():
    teacher = {"url": "http://10.1.2.3:8000/v1", "model": "big"}
    found = lines(with_value(shortest(), "spec.algorithm", {"mode": "opd", "teacher": teacher}))
    assert [line for line in found if "the teacher" in line] == ["orchestrator -> 10.1.2.3/32 (TCP/8000): the teacher"]


@pytest.mark.parametrize("url", ["http://teacher:99999999", "http://[teacher"])
def test_an_address_that_cannot_be_read_ends_no_rendering(url):
    found = lines(with_value(shortest(), "spec.algorithm", {"mode": "opd", "teacher": {"url": url, "model": "big"}}))
    assert [line for line in found if "the teacher" in line] == ["orchestrator -> anywhere (TCP/443): the teacher"]


@pytest.mark.parametrize("kind", ["openenv", "nemo-gym"])
def test_a_server_of_environments_is_reached_by_the_orchestrator_alone(kind):
    found = lines(with_value(shortest(), "spec.environments.train.0.type", f"{kind}:http://games:8000/chess"))
    name = "spec.environments.train[0].type"
    assert [line for line in found if name in line] == [f"orchestrator -> anywhere (TCP/8000): {name}"]
