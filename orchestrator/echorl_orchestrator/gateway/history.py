"""Append-only history of one session: a tree of messages, the branches of tokens that grew along it, and its turns.

A node is a message in the context of all messages before it. Where a turn ended, its node knows the branch and how
many of its tokens lead there. So finding what a request continues costs one lookup a message, and two requests with
the same messages meet at the same node whichever way they came.
"""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from echorl_orchestrator.chat.messages import message_key
from echorl_orchestrator.gateway.routed_tokens import RoutedTokens
from echorl_orchestrator.gateway.tokens import Columns


@dataclass(frozen=True)
class TurnEnd:
    """The place in a branch where a turn ended."""

    tokens: int
    """Tokens of the branch up to here, the sampled ones included."""
    prompt_tail: int
    """Where the prompt of this turn began: at the end of the turn before it, or at 0 if it was rendered as a whole."""
    sampled: int
    """Where the sampled tokens of this turn begin."""
    turn: int
    """Number of the turn."""


@dataclass(frozen=True)
class TurnPlace:
    """Where a turn stands among those of its session."""

    number: int
    branch: int
    continues: int | None
    """The turn whose answer its messages go on from; None: it begins a conversation."""
    prompt: int
    """Equal for turns with the same tools and messages."""
    opening: tuple[Any, ...]
    """Of its first message; equal messages have equal ones."""
    has_tools: bool
    delivered: bool = True
    """False: whoever asked hung up before the answer was sent."""


@dataclass(eq=False)
class Branch:
    """One growing token sequence. Tokens are only ever appended."""

    number: int
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    """Every token's id: an array, because each request sends all of them."""
    parts: list[Columns] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    routed: RoutedTokens = field(default_factory=RoutedTokens)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a turn extends the branch."""

    def columns(self) -> Columns:
        """All tokens of the branch."""
        if len(self.parts) > 1:
            self.parts = [Columns.joined(self.parts)]
        return self.parts[0]

    def append(self, part: Columns) -> None:
        """Add tokens."""
        self.parts.append(part)
        self.ids.frombytes(part.ids.tobytes())


@dataclass(eq=False)
class Node:
    """One message after its predecessors."""

    uid: int
    children: dict[tuple[Any, ...], "Node"] = field(default_factory=dict)
    ends: list[tuple[Branch, TurnEnd]] = field(default_factory=list)
    """Turns that ended with this message."""


@dataclass(frozen=True)
class Continuation:
    """What a request continues: ``messages`` of its messages led to the end of a turn of ``branch``."""

    branch: Branch
    end: TurnEnd
    messages: int

    @property
    def in_place(self) -> bool:
        """The branch has not grown beyond that turn."""
        return self.end.tokens == len(self.branch.ids)


class History:
    """Messages and branches of one session."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self.turns: list[TurnPlace] = []
        """In the order of their numbers."""
        self._roots: dict[str, Node] = {}
        self._nodes = 0

    def _node(self) -> Node:
        self._nodes += 1
        return Node(self._nodes)

    def path(self, tools_key: str, messages: Sequence[Mapping[str, Any]], before: Sequence[Node] = ()) -> list[Node]:
        """The node of each message, given that the session's tools are those of ``tools_key``; made where missing.

        ``before``: nodes of messages that stand before ``messages``; they lead the path.
        """
        if tools_key not in self._roots:
            self._roots[tools_key] = self._node()
        nodes = list(before)
        node = nodes[-1] if nodes else self._roots[tools_key]
        for message in messages:
            node = self.step(node, message)
            nodes.append(node)
        return nodes

    def step(self, node: Node, message: Mapping[str, Any]) -> Node:
        """The node of ``message`` after ``node``; made where missing."""
        key = message_key(message)
        if key not in node.children:
            node.children[key] = self._node()
        return node.children[key]

    def undelivered(self, turn: int) -> None:
        """Note that the answer of this turn reached nobody."""
        self.turns[turn] = replace(self.turns[turn], delivered=False)

    def find(self, nodes: Sequence[Node]) -> Continuation | None:
        """The last turn that ended along ``nodes``, with at least one message after it."""
        for count in range(len(nodes) - 1, 0, -1):
            options = [Continuation(branch, end, count) for branch, end in nodes[count - 1].ends]
            if options:
                return next((option for option in options if option.in_place), options[0])
        return None

    def longest_shared(self, ids: Sequence[int]) -> tuple[Branch | None, int]:
        """The branch that shares the longest beginning with ``ids``, and how many tokens that is."""
        wanted = np.asarray(ids, np.int32)
        best, most = None, 0
        for branch in self.branches:
            own = branch.columns().ids
            size = min(len(own), len(wanted))
            differing = np.flatnonzero(own[:size] != wanted[:size])
            shared = int(differing[0]) if len(differing) else size
            if shared > most:
                best, most = branch, shared
        return best, most
