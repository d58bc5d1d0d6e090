"""What a session knows of the conversation that it was given last: a longer one costs only what is new in it."""

from collections.abc import Mapping, Sequence
from typing import Any

from echorl_orchestrator.gateway.history import Node


class PrefixCache:
    """The messages of one conversation as they came in, in canonical form, and their places in the history."""

    def __init__(self) -> None:
        self._tools_key = ""
        self._messages: list[Any] = []
        self._copies: list[Mapping[str, Any]] = []
        """Shallow: a caller may have put another content into the same message."""
        self._canonical: list[dict[str, Any]] = []
        self._nodes: list[Node] = []

    def prefix(self, messages: Sequence[Any], tools_key: str) -> tuple[list[dict[str, Any]], list[Node]]:
        """Canonical form and place of the first ones of ``messages``: those that are the very same objects as before.

        Clients that send every message anew, as over HTTP, find none here; the history finds theirs by what they say.
        """
        same = 0
        if tools_key == self._tools_key:
            for message, before, copy in zip(messages, self._messages, self._copies, strict=False):
                if message is not before or message != copy:
                    break
                same += 1
        return self._canonical[:same], self._nodes[:same]

    def keep(
        self, messages: Sequence[Any], tools_key: str, canonical: Sequence[dict[str, Any]], nodes: Sequence[Node]
    ) -> None:
        """Know this conversation from now on; what ``prefix`` answered leads ``canonical`` and ``nodes``."""
        same = 0
        for before, now in zip(self._nodes, nodes, strict=False):
            if before is not now:
                break
            same += 1
        self._tools_key = tools_key
        self._messages[same:] = messages[same:]
        self._copies[same:] = [dict(message) for message in messages[same:]]
        self._canonical[same:] = canonical[same:]
        self._nodes[same:] = nodes[same:]
