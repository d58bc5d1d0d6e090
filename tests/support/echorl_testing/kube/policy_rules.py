"""NetworkPolicies as iptables rules of the node that the pods are on. Pure; what they must mean: ``netpol.allowed``.

Each pod that a policy of a direction selects has a chain for that direction: what one of its rules allows goes back to
where it came from, all else is rejected. Connections that are there stay. Named ports are not known here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses, ip_address, ip_network
from typing import Any

from echorl_testing.kube.netpol import Policy, selects

CHAIN = "ECHORL-POLICIES"
"""What the node's own chains jump to; names of all others begin with it."""
_ANYBODY = [IPv4Network("0.0.0.0/0")]
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Pod:
    """Who has an address."""

    ip: str
    namespace: str
    labels: Mapping[str, str]


def pods_of(items: Iterable[Mapping[str, Any]]) -> list[Pod]:
    """The pods that policies are about: those that have an address of their own and have not ended."""
    return [
        Pod(pod["status"]["podIP"], pod["metadata"]["namespace"], pod["metadata"].get("labels") or {})
        for pod in items
        if pod["status"].get("podIP")
        and not pod["spec"].get("hostNetwork")
        and pod["status"].get("phase") not in _ENDED
    ]


def restore_text(policies: Iterable[Policy], pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> str:
    """What ``iptables-restore --noflush`` reads.

    Args:
        policies: NetworkPolicies of all namespaces.
        pods: those of the node.
        namespaces: labels of every namespace, by name.

    Raises:
        ValueError: a policy has a named port.
    """
    policies, pods = list(policies), sorted(pods, key=lambda pod: ip_address(pod.ip))
    jumps, names, chains = list[str](), [CHAIN], list[str]()
    for pod in pods:
        for kind, own, other in (("Egress", "-s", "-d"), ("Ingress", "-d", "-s")):
            specs = [policy["spec"] for policy in policies if _applies(policy, kind, pod)]
            if not specs:
                continue
            name = f"{CHAIN}-{len(names)}"
            names.append(name)
            jumps.append(f"-A {CHAIN} {own} {pod.ip}/32 -j {name}")
            rules = (rule for spec in specs for rule in spec.get(kind.lower()) or ())
            found = (
                f"-A {name} {one}" for rule in rules for one in _allowing(rule, kind, other, pod, pods, namespaces)
            )
            chains += [*dict.fromkeys(found), f"-A {name} -j REJECT"]
    declared = (f":{name} - [0:0]" for name in names)
    known = f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    return "\n".join(["*filter", *declared, known, *jumps, *chains, "COMMIT", ""])


def _applies(policy: Policy, kind: str, pod: Pod) -> bool:
    spec = policy["spec"]
    in_place = policy["metadata"]["namespace"] == pod.namespace
    return in_place and kind in spec["policyTypes"] and selects(spec.get("podSelector") or {}, pod.labels)


def _allowing(
    rule: Mapping[str, Any],
    kind: str,
    other: str,
    pod: Pod,
    pods: Iterable[Pod],
    namespaces: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    """Options of iptables rules that let through what one rule of a policy allows."""
    peers = rule.get("to" if kind == "Egress" else "from")
    networks = _ANYBODY if not peers else [net for peer in peers for net in _networks(peer, pod, pods, namespaces)]
    for network in networks:
        for ports in [_ports(entry) for entry in rule.get("ports") or ()] or [""]:
            yield f"{other} {network}{ports} -j RETURN"


def _networks(
    peer: Mapping[str, Any], pod: Pod, pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]
) -> list[IPv4Network]:
    if "ipBlock" in peer:
        return _without(IPv4Network(peer["ipBlock"]["cidr"], strict=False), peer["ipBlock"].get("except") or ())
    places = {pod.namespace}
    if (wanted := peer.get("namespaceSelector")) is not None:
        places = {name for name, labels in namespaces.items() if selects(wanted, labels)}
    of_them = peer.get("podSelector") or {}
    return [IPv4Network(one.ip) for one in pods if one.namespace in places and selects(of_them, one.labels)]


def _without(block: IPv4Network, excepted: Iterable[str]) -> list[IPv4Network]:
    """A range less others, as ranges: iptables takes one exception at most in a rule."""
    left = [block]
    for text in excepted:
        hole = IPv4Network(ip_network(text, strict=False))
        left = [part for one in left for part in _less(one, hole)]
    return list(collapse_addresses(left))


def _less(block: IPv4Network, hole: IPv4Network) -> Iterable[IPv4Network]:
    if block.subnet_of(hole):
        return ()
    return block.address_exclude(hole) if hole.subnet_of(block) else (block,)


def _ports(entry: Mapping[str, Any]) -> str:
    first = entry.get("port")
    if isinstance(first, str):
        raise ValueError(f"named port {first}: not known here")
    protocol = f" -p {entry.get('protocol', 'TCP').lower()}"
    return protocol if first is None else f"{protocol} --dport {first}:{entry.get('endPort', first)}"
