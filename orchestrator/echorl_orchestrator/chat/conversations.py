"""A whole conversation as one task: what ``builtin:messages`` reads from a file, and what mode sft learns from."""

import math
from typing import Any

from echorl_orchestrator.chat.messages import MessageError, canonical_message

KEYS = ("messages", "tools", "key", "reward")
"""Fields that a conversation may have."""


def conversation_of(row: Any) -> dict[str, Any]:
    """The row as a task, without its key.

    Raises:
        MessageError: it is no conversation; the text names the field.
    """
    if not isinstance(row, dict):
        raise MessageError(f"found {type(row).__name__}, accepted is an object")
    if unknown := sorted(set(row) - set(KEYS)):
        raise MessageError(f"found {', '.join(map(repr, unknown))}, accepted are {', '.join(KEYS)}")
    messages, tools, reward = row.get("messages"), row.get("tools") or [], row.get("reward")
    if not isinstance(messages, list) or not messages:
        raise MessageError("messages: accepted is a list of at least one chat message")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise MessageError("tools: accepted is a list of tool definitions")
    if reward is not None and not (type(reward) in {int, float} and math.isfinite(reward)):
        raise MessageError(f"reward: found {reward!r}, accepted is a finite number")
    canonical = [canonical_message(message, index) for index, message in enumerate(messages)]
    return {"messages": canonical, "tools": tools, "reward": reward}
