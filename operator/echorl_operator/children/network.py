"""NetworkPolicies of a run, from its arrows: everything is denied, then each arrow allowed at both ends."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.schema import found_text
from echorl_operator import names
from echorl_operator.children.arrows import (
    AGENTS,
    ANYWHERE,
    BROKER,
    DNS,
    FIRST_TRAINER,
    MONITORING,
    OPERATOR,
    RUN_ENDS,
    SANDBOXES,
    SANDBOXES_WITH_GATEWAY,
    Arrow,
    Ports,
)
from echorl_operator.children.node_network import on_host
from echorl_operator.children.overlay_rules import POD_INDEX
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole
from echorl_operator.settings import LABEL_NAMESPACE, Selector

_EGRESS_KEYS = frozenset({"to", "ports"})


def network_policies(target: Target, arrows: Iterable[Arrow]) -> list[Object]:
    """One that denies all to all pods of the run, and one for each end that has an arrow."""
    arrows = list(arrows)
    everyone: Object = {"matchLabels": {names.LABEL_RUN_UID: target.uid}}
    policies = [_policy(target, "default-deny", everyone, {}, both=True)]
    for end in RUN_ENDS:
        rules: Object = {}
        ingress = [_ingress(target, arrow) for arrow in arrows if arrow.target == end]
        egress = [_egress(target, arrow) for arrow in arrows if arrow.source == end]
        if ingress:
            rules["ingress"] = ingress
        if egress:
            rules["egress"] = egress
        if rules:
            policies.append(_policy(target, end, _pods(target, end), rules))
    return policies


def egress_problems(rules: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """What is no NetworkPolicy egress rule in ``spec.egress``, as far as it can be told without the API server."""
    problems = []
    for index, rule in enumerate(rules):
        path = f"spec.egress[{index}]"
        for key, value in rule.items():
            if key not in _EGRESS_KEYS:
                problems.append(Problem(f"{path}.{key}", found_text(value), "to or ports", "no part of an egress rule"))
            elif not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
                problems.append(Problem(f"{path}.{key}", found_text(value), "a list of mappings"))
            elif key == "to":
                problems += _address_problems(f"{path}.to", value)
    return problems


def _address_problems(path: str, peers: list[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, peer in enumerate(peers):
        block = peer.get("ipBlock")
        if not isinstance(block, Mapping):
            continue
        excepted = block.get("except")
        ranges = {"cidr": block.get("cidr")}
        ranges |= {f"except[{place}]": net for place, net in enumerate(excepted)} if isinstance(excepted, list) else {}
        for key, text in ranges.items():
            if not _is_range(text):
                accepted = "a range of addresses such as 10.0.0.0/8"
                yield Problem(f"{path}[{index}].ipBlock.{key}", found_text(text), accepted)


def _is_range(text: object) -> bool:
    try:
        return isinstance(text, str) and "/" in text and ip_network(text, strict=False) is not None
    except ValueError:
        return False


def _policy(target: Target, name: str, selector: Object, rules: Object, *, both: bool = False) -> Object:
    types = [kind for kind in ("Ingress", "Egress") if both or kind.lower() in rules]
    return {
        **target.child("networking.k8s.io/v1", "NetworkPolicy", f"{target.name}-{name}"),
        "spec": {"podSelector": selector, "policyTypes": types, **rules},
    }


def _ingress(target: Target, arrow: Arrow) -> Object:
    return _rule("from", _peers(target, arrow.source), arrow.ports)


def _egress(target: Target, arrow: Arrow) -> Object:
    if arrow.target.startswith("spec.egress["):
        index = int(arrow.target.removeprefix("spec.egress[").removesuffix("]"))
        return dict(target.spec.egress[index])
    return _rule("to", _peers(target, arrow.target), arrow.ports)


def _rule(direction: str, peers: list[Object], ports: tuple[Ports, ...]) -> Object:
    rule: Object = {direction: peers} if peers else {}
    if ports:
        rule["ports"] = [_port(span) for span in ports]
    return rule


def _port(ports: Ports) -> Object:
    port: Object = {"protocol": ports.protocol, "port": ports.first}
    return port if ports.first == ports.last else {**port, "endPort": ports.last}


def _peers(target: Target, end: str) -> list[Object]:
    """Empty: anybody."""
    settings = target.settings
    if end in RUN_ENDS:
        return [{"podSelector": _pods(target, end)}, *_nodes(target, end)]
    if end == ANYWHERE:
        return []
    if end in {OPERATOR, BROKER}:
        namespace = {LABEL_NAMESPACE: settings.operator_namespace}
        pods = settings.operator_labels if end == OPERATOR else settings.broker_labels
        return [_selected(Selector(namespace_labels=namespace, pod_labels=pods))]
    if end == MONITORING:
        return [_selected(settings.monitoring)]
    if end == DNS:
        return [_selected(settings.dns), *({"ipBlock": {"cidr": cidr}} for cidr in settings.dns.cidrs)]
    return [{"ipBlock": {"cidr": end}}]


def _nodes(target: Target, end: str) -> list[Object]:
    """Where pods of an end are that have no address of their own."""
    role = PodRole.TRAINER if end == FIRST_TRAINER else end
    on_nodes = role in on_host(target.spec)
    return [{"ipBlock": {"cidr": cidr}} for cidr in target.settings.host_network_cidrs if on_nodes]


def _selected(selector: Selector) -> Object:
    namespaces: Object = {"matchLabels": dict(selector.namespace_labels)} if selector.namespace_labels else {}
    peer: Object = {"namespaceSelector": namespaces}
    if selector.pod_labels:
        peer["podSelector"] = {"matchLabels": dict(selector.pod_labels)}
    return peer


def _pods(target: Target, end: str) -> Object:
    if end == FIRST_TRAINER:
        return {"matchLabels": {**target.selector(PodRole.TRAINER), POD_INDEX: "0"}}
    if end in {AGENTS, SANDBOXES}:
        return {"matchLabels": {names.LABEL_RUN_UID: target.uid, names.LABEL_ROLE: end}}
    if end == SANDBOXES_WITH_GATEWAY:
        own = {names.LABEL_RUN_UID: target.uid, names.LABEL_ROLE: SANDBOXES, names.LABEL_GATEWAY: "allowed"}
        return {"matchLabels": own}
    return {"matchLabels": target.selector(PodRole(end))}
