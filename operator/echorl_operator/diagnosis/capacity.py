"""What nodes have free, where one may look at them: ``8 nvidia.com/gpu wanted, 3 free on 2 nodes``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from echorl_operator.quantities import readable, value


@dataclass(frozen=True)
class Node:
    """What one node has, and what pods on it ask for."""

    name: str
    allocatable: Mapping[str, str]
    schedulable: bool
    """Ready, and not cordoned."""


@dataclass(frozen=True)
class Room:
    """What one resource of one node is like."""

    node: str
    allocatable: Fraction
    free: Fraction


def rooms(resource: str, nodes: Iterable[Node], used: Mapping[str, Sequence[str]]) -> list[Room]:
    """Nodes that have a resource at all and take pods, most room first.

    Args:
        resource: such as ``nvidia.com/gpu``.
        nodes: of the cluster.
        used: by node, what each pod that is bound to it and has not ended asks for of the resource.
    """
    rooms = []
    for node in nodes:
        if node.schedulable and (whole := value(node.allocatable.get(resource, "0"))) > 0:
            taken = sum((value(amount) for amount in used.get(node.name, ())), Fraction(0))
            rooms.append(Room(node.name, whole, max(Fraction(0), whole - taken)))
    return sorted(rooms, key=lambda room: (-room.free, room.node))


def words(resource: str, wanted: str, nodes: Sequence[Room]) -> str:
    """What is wanted beside what is free. ``nodes``: as ``rooms`` gives them."""
    need = value(wanted)
    asked = f"{readable(resource, need)} wanted"
    if not nodes:
        return f"{asked}, and no node that takes pods has any"
    if max(room.allocatable for room in nodes) < need:
        most = _amount(resource, max(room.allocatable for room in nodes))
        return f"{asked}, and no node has more than {most}"
    free = sum((room.free for room in nodes), Fraction(0))
    where = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    text = f"{asked}, {_amount(resource, free)} free on {where}"
    return text if len(nodes) == 1 or free < need else f"{text}, at most {_amount(resource, nodes[0].free)} on one"


def _amount(resource: str, number: Fraction) -> str:
    return readable(resource, number).removesuffix(resource).strip()
