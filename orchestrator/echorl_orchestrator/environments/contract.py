"""What authors of multi-agent environments write, and what of it is checked before a run starts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from echorl_orchestrator.types import Action

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
RESERVED_MEMBERS = frozenset({"mean", "std", "min", "max"})
"""Names of statistics, which stand where members do in the names of metrics."""
LEARNER_SEAT = "learnerSeat"
"""Key of a task: the member whose reward an eval reports, and who alone trains beside a frozen seat."""


@dataclass(frozen=True)
class Slot:
    """One place of the schedule: these members speak, at the same time if there are several."""

    id: str
    """Unique within the schedule."""
    phase: str
    """What kind of turn it is; prompts are chosen by it."""
    members: Sequence[str]


@dataclass(frozen=True)
class Stage:
    """What a MultiAgentEnv returns from reset and step. Crosses a process boundary as plain JSON-like data."""

    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By member: what it is told next, in OpenAI's form. Whoever speaks in the next slot has something new."""
    terminated: bool = False
    """The episode is over before its schedule is."""
    info: dict[str, Any] = field(default_factory=dict)
    """Extra fields; those named by ``stateColumns`` go into the episode record."""


@dataclass(frozen=True)
class MemberReward:
    """What one member got out of an episode."""

    reward: float
    metrics: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class MultiAgentEnv(Protocol):
    """One episode. Methods may be sync or async; they run in a worker process."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Any:
        """First Stage."""
        ...

    def step(self, slot: Slot, actions: Mapping[str, "Action"]) -> Any:
        """Next Stage, after every member of ``slot`` has spoken. Their private reasoning is not in ``actions``."""
        ...

    def rewards(self) -> Any:
        """``MemberReward`` of every member, by name; asked once, at the end, also when it came early."""
        ...

    def close(self) -> Any:
        """Free what the episode holds. Called once, also after errors."""
        ...


@dataclass(frozen=True)
class MultiAgent:
    """Who takes part, and in which order they speak."""

    members: Sequence[str]
    schedule: Sequence[Slot]
    env: Any
    """Callable without arguments that makes the MultiAgentEnv of one episode."""


def problems(found: MultiAgent) -> Iterator[str]:
    """What is wrong with members and schedule."""
    members = list(found.members)
    if not members:
        yield "members: found none, accepted is at least one"
    for name in members:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"members: found {name!r}, accepted are up to 63 letters, digits, '-' and '_'"
        elif name in RESERVED_MEMBERS:
            yield f"members: {name!r} is the name of a statistic; accepted is any other name"
    yield from (f"members: {name!r} is there twice" for name in _twice(members))
    if not found.schedule:
        yield "schedule: found no slot, accepted is at least one"
    yield from (f"schedule: the slot {name!r} is there twice" for name in _twice([slot.id for slot in found.schedule]))
    for slot in found.schedule:
        if not slot.members:
            yield f"schedule: slot {slot.id!r} has no members"
        yield from (f"schedule: slot {slot.id!r} has {name!r} twice" for name in _twice(slot.members))
        for name in slot.members:
            if name not in members:
                yield f"schedule: slot {slot.id!r}: found {name!r}, accepted are {', '.join(map(str, members))}"


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if list(names).count(name) > 1})
