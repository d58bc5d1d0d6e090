"""The rules of the test cluster's node mean what the NetworkPolicies mean that they are made of."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_testing.kube.netpol import Peer, allowed
from echorl_testing.kube.policy_rules import CHAIN, Pod, pods_of, restore_text

NAMESPACES = {name: {"kubernetes.io/metadata.name": name, "team": team} for name, team in (("a", "x"), ("b", "y"))}
PODS = [
    Pod(f"10.0.0.{index}", namespace, labels)
    for index, (namespace, labels) in enumerate(
        [("a", {"role": "db"}), ("a", {"role": "web", "app": "one"}), ("a", {}), ("b", {"role": "db"}), ("b", {})], 1
    )
]
OUTSIDE = ("10.0.0.9", "10.0.1.5", "192.0.2.7")
PORTS = [("TCP", 79), ("TCP", 80), ("TCP", 82), ("UDP", 80)]


def peer(pod: Pod) -> Peer:
    return Peer(pod.ip, pod.namespace, pod.labels, pod.ip, {"team": NAMESPACES[pod.namespace]["team"]})


PEERS = [*map(peer, PODS), *(Peer(ip, ip=ip) for ip in OUTSIDE)]


def passes(text: str, source: str, target: str, port: int, protocol: str) -> bool:
    """What a kernel would make of the rules, of a new connection: rules of a chain in turn, RETURN to where it was."""
    chains: dict[str, list[dict[str, str]]] = {}
    for line in text.splitlines():
        words = line.split()
        if words[0] == "-A" and "conntrack" not in words:
            chains.setdefault(words[1], []).append(dict(zip(words[2::2], words[3::2], strict=True)))

    def matches(rule: dict[str, str]) -> bool:
        first, _, last = rule.get("--dport", "0:65535").partition(":")
        return (
            ip_address(source) in ip_network(rule.get("-s", "0.0.0.0/0"))
            and ip_address(target) in ip_network(rule.get("-d", "0.0.0.0/0"))
            and rule.get("-p", protocol.lower()) == protocol.lower()
            and int(first) <= port <= int(last)
        )

    def rejected_in(name: str) -> bool:
        for rule in chains.get(name, ()):
            if matches(rule):
                if rule["-j"] in {"RETURN", "REJECT"}:
                    return rule["-j"] == "REJECT"
                if rejected_in(rule["-j"]):
                    return True
        return False

    return not rejected_in(CHAIN)


def policy(namespace: str = "a", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], **spec}}


def labelled(**labels: str) -> dict[str, Any]:
    return {"matchLabels": labels}


expressions = st.sampled_from(
    [
        {"key": "role", "operator": "Exists"},
        {"key": "role", "operator": "DoesNotExist"},
        {"key": "role", "operator": "In", "values": ["db", "x"]},
        {"key": "role", "operator": "NotIn", "values": ["db"]},
    ]
)
pod_selectors = st.one_of(
    st.just({}),
    st.sampled_from([labelled(role="db"), labelled(role="web", app="one"), labelled(role="none")]),
    expressions.map(lambda one: {"matchExpressions": [one]}),
)
namespace_selectors = st.sampled_from([{}, labelled(team="x"), labelled(**{"kubernetes.io/metadata.name": "b"})])
blocks = st.builds(
    lambda cidr, excepted: {"cidr": cidr, "except": excepted} if excepted else {"cidr": cidr},
    st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/29", "192.0.2.7/32"]),
    st.lists(st.sampled_from(["10.0.0.0/16", "10.0.0.0/30", "10.0.0.2/31", "10.0.0.5/32", "192.0.2.0/24"]), max_size=2),
)
peers = st.one_of(
    blocks.map(lambda block: {"ipBlock": block}),
    pod_selectors.map(lambda pods: {"podSelector": pods}),
    namespace_selectors.map(lambda places: {"namespaceSelector": places}),
    st.builds(
        lambda places, pods: {"namespaceSelector": places, "podSelector": pods}, namespace_selectors, pod_selectors
    ),
)
ports = st.sampled_from(
    [
        {"port": 80},
        {"protocol": "UDP", "port": 80},
        {"protocol": "TCP", "port": 79, "endPort": 81},
        {"protocol": "UDP"},
        {"protocol": "TCP"},
    ]
)


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    def rules(key: str) -> list[dict[str, Any]]:
        made = st.fixed_dictionaries(
            {}, optional={key: st.lists(peers, max_size=2), "ports": st.lists(ports, max_size=2)}
        )
        return draw(st.lists(made, max_size=2))

    types = draw(st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]))
    spec: dict[str, Any] = {"podSelector": draw(pod_selectors), "policyTypes": types}
    spec |= {"ingress": rules("from")} if "Ingress" in types else {}
    spec |= {"egress": rules("to")} if "Egress" in types else {}
    return {"metadata": {"namespace": draw(st.sampled_from(["a", "b"]))}, "spec": spec}


@settings(max_examples=60)
@given(st.lists(policies(), max_size=3))
def test_a_connection_passes_exactly_if_the_policies_allow_it(made: list[dict[str, Any]]) -> None:
    text = restore_text(made, PODS, NAMESPACES)
    for source in PEERS:
        for target in PEERS:
            # What a pod sends to itself never leaves it.
            if source is target or (source.namespace is None and target.namespace is None):
                continue
            for protocol, port in PORTS:
                found = passes(text, source.ip, target.ip, port, protocol)
                assert found == allowed(made, source, target, port, protocol), (source, target, protocol, port, text)


def test_without_policies_nothing_is_rejected_and_what_is_known_goes_on() -> None:
    assert restore_text([], PODS, NAMESPACES).splitlines() == [
        "*filter",
        f":{CHAIN} - [0:0]",
        f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "COMMIT",
    ]


def test_the_rules_of_two_policies_by_hand() -> None:
    into = policy(podSelector=labelled(role="db"), ingress=[{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}])
    block = {"cidr": "10.0.0.0/29", "except": ["10.0.0.0/31", "10.0.0.0/30"]}
    out = policy("b", podSelector=labelled(role="db"), policyTypes=["Egress"], egress=[{"to": [{"ipBlock": block}]}])
    assert restore_text([into, out], PODS, NAMESPACES).splitlines()[5:-1] == [
        f"-A {CHAIN} -d 10.0.0.1/32 -j {CHAIN}-1",
        f"-A {CHAIN} -s 10.0.0.4/32 -j {CHAIN}-2",
        f"-A {CHAIN}-1 -s 10.0.0.1/32 -p tcp --dport 80:80 -j RETURN",
        f"-A {CHAIN}-1 -s 10.0.0.2/32 -p tcp --dport 80:80 -j RETURN",
        f"-A {CHAIN}-1 -s 10.0.0.3/32 -p tcp --dport 80:80 -j RETURN",
        f"-A {CHAIN}-1 -j REJECT",
        f"-A {CHAIN}-2 -d 10.0.0.4/30 -j RETURN",
        f"-A {CHAIN}-2 -j REJECT",
    ]


def test_a_named_port_is_refused_rather_than_left_out() -> None:
    with pytest.raises(ValueError, match="named port http"):
        restore_text([policy(ingress=[{"ports": [{"port": "http"}]}])], PODS, NAMESPACES)


def test_whose_addresses_are_whose() -> None:
    def pod(name: str, phase: str = "Running", ip: str | None = "10.0.0.1", **spec: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": "a", "labels": {"app": name}}
        return {"metadata": meta, "spec": spec, "status": {"phase": phase, **({"podIP": ip} if ip else {})}}

    found = pods_of(
        # An ended pod's address may be another's already; the node's own is nobody's.
        [
            pod("lives"),
            pod("ended", "Succeeded"),
            pod("failed", "Failed"),
            pod("new", ip=None),
            pod("host", hostNetwork=True),
        ]
    )
    assert found == [Pod("10.0.0.1", "a", {"app": "lives"})]
