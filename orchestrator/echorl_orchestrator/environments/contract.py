"""What authors of environments write, and what of it is checked before a run starts.

An environment is tasks and one of four ways to play them: a ``TextEnv`` that we drive, an ``EpisodeRunner`` that drives
itself, a ``MultiAgent`` whose members speak by a schedule, or nothing at all (``given``). ``echorl_orchestrator.types``
exports all of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from echorl_orchestrator.sandboxes.contract import Sandboxes

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
RESERVED_MEMBERS = frozenset({"mean", "std", "min", "max"})
"""Names of statistics, which stand where members do in the names of metrics."""
LEARNER_SEAT = "learnerSeat"
"""Key of a task: the member whose reward an eval reports, and who alone trains beside a frozen seat."""


@dataclass(frozen=True)
class Span:
    """Characters ``start:end`` of message ``message`` (index into ``Step.messages``) that are a harness warning."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class Step:
    """What a TextEnv returns from reset and step. Crosses a process boundary as plain JSON-like data."""

    messages: list[dict[str, Any]]
    """New messages since the last model turn (reset: the whole first prompt)."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tool definitions; those of reset stay for the episode."""
    reward: float | None = None
    """None: not scored (an episode that ends unscored is an ``env`` error)."""
    terminated: bool = False
    truncated: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    """Extra fields; those named by ``stateColumns`` go into the episode record."""
    warnings: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Action:
    """What the model did in one turn, as parsed by the codec."""

    text: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """``{"id", "name", "arguments": {...}}``; arguments already decoded."""
    truncated: bool = False
    """The completion hit its token limit."""


@runtime_checkable
class TextEnv(Protocol):
    """One episode that we drive. Methods may be sync or async; they run in a worker process."""

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Any:
        """First Step."""
        ...

    def step(self, action: Action) -> Any:
        """Next Step."""
        ...

    def close(self) -> Any:
        """Free what the episode holds. Called once, also after errors."""
        ...


@dataclass(frozen=True)
class Limits:
    """Bounds of one episode."""

    max_turns: int | None
    timeout_s: float
    max_model_len: int


@dataclass(frozen=True)
class RunnerResult:
    """What an EpisodeRunner returns: rewards; the tokens come from the gateway."""

    reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    agent_failure: str | None = None
    """How the agent failed, where the runner scores the episode all the same. It counts for nothing when an engine
    failed under the agent: the episode then fails as the engine did."""


@runtime_checkable
class EpisodeRunner(Protocol):
    """An agent that owns its loop and calls an OpenAI-compatible URL. Runs in a worker process."""

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """Play one episode against ``base_url`` (session key in the path and in ``X-Session-ID``)."""
        ...


class SandboxedRunner(Protocol):
    """An agent that lives in sandboxes; it is known by its parameter of that name. Runs in a worker process."""

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits, sandboxes: Sandboxes
    ) -> RunnerResult:
        """Play one episode with ``sandboxes`` of its own, by ``spec.sandboxes``; what it forgets is destroyed.

        From inside, the gateway is at ``Sandbox.gateway``, with the path of ``base_url``.
        """
        ...


@runtime_checkable
class TaskSource(Protocol):
    """Tasks by index, so that a cursor is one integer. A task's ``key`` (int or str) is its identity, kept as it is."""

    def __len__(self) -> int:
        """How many tasks there are."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Task ``index``; the same at every call."""
        ...


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

    def step(self, slot: Slot, actions: Mapping[str, Action]) -> Any:
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


@dataclass(frozen=True)
class Environment:
    """What an environment factory returns: tasks, and one of ``text_env``, ``runner``, ``multi_agent``, ``given``."""

    tasks: TaskSource
    text_env: Any = None
    """Callable without arguments that makes the TextEnv of one episode."""
    runner: EpisodeRunner | SandboxedRunner | None = None
    multi_agent: MultiAgent | None = None
    given: bool = False
    """Tasks are whole conversations, ``messages`` and if need be ``tools``: nothing is played. For mode sft."""
    score_group: Any = None
    """Callable ``(task, list of episode infos) -> list of rewards``; the group then falls or stands as a whole."""
    check_episode_time: Callable[[float], object] | None = None
    """Called with the seconds of an episode when a run loads the environment; it raises ``BadInputError`` where
    arguments do not fit into them."""


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
