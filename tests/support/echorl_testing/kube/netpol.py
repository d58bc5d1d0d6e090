"""What NetworkPolicies allow: an evaluator of the API's rules, pair by pair.

A connection is allowed if the caller's egress and the callee's ingress allow it. A pod that no policy of a direction
selects is not restricted in that direction. Named ports are not known here.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod, or with no namespace something outside the cluster."""

    name: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ip: str = "10.9.9.9"
    more_namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Besides the one that every namespace has."""

    @property
    def namespace_labels(self) -> Mapping[str, str]:
        """Of its namespace."""
        return {**self.more_namespace_labels, "kubernetes.io/metadata.name": self.namespace or ""}


def allowed(policies: Iterable[Policy], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether ``source`` may connect to ``port`` of ``target``."""
    policies = list(policies)
    return all(
        _direction(policies, "Egress" if pod is source else "Ingress", pod, other, port, protocol)
        for pod, other in ((source, target), (target, source))
    )


def _direction(policies: list[Policy], kind: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    if pod.namespace is None:
        return True
    applying = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and selects(policy["spec"]["podSelector"], pod.labels)
        and kind in policy["spec"]["policyTypes"]
    ]
    if not applying:
        return True
    peers = "to" if kind == "Egress" else "from"
    return any(
        _port_matches(rule.get("ports"), port, protocol) and _peer_matches(rule.get(peers), pod, other)
        for spec in applying
        for rule in spec.get(kind.lower(), [])
    )


def _port_matches(ports: list[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    if not ports:
        return True
    for entry in ports:
        if isinstance(entry.get("port"), str):
            raise ValueError(f"named port {entry['port']}: not known to this evaluator")
        first = entry.get("port", 0)
        last = entry.get("endPort", first or 65535)
        if entry.get("protocol", "TCP") == protocol and first <= port <= last:
            return True
    return False


def _peer_matches(peers: list[Mapping[str, Any]] | None, pod: Peer, other: Peer) -> bool:
    return not peers or any(_one_matches(peer, pod, other) for peer in peers)


def _one_matches(peer: Mapping[str, Any], pod: Peer, other: Peer) -> bool:
    if "ipBlock" in peer:
        block, address = peer["ipBlock"], ipaddress.ip_address(other.ip)
        excepted = any(address in ipaddress.ip_network(cidr) for cidr in block.get("except", []))
        return address in ipaddress.ip_network(block["cidr"]) and not excepted
    if other.namespace is None:
        return False
    if "namespaceSelector" in peer:
        same_place = selects(peer["namespaceSelector"], other.namespace_labels)
    else:
        same_place = other.namespace == pod.namespace
    return same_place and selects(peer.get("podSelector", {}), other.labels)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects what has these labels."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _expression(one, labels) for one in selector.get("matchExpressions", [])
    )


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    return (labels.get(key) in expression["values"]) is (operator == "In")
