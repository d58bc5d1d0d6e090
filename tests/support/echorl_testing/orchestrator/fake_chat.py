"""Chats as a fake engine renders and reads them: one token a byte, so that tests can compute every id.

A message is its role's token, the bytes of what it says, and the end token; an assistant message that comes back
renders to exactly the tokens that were sampled for it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]
Reply = Callable[[Sequence[Message]], Message]
"""What the fake model says to a conversation: content, and tool_calls in OpenAI's form."""

END = 260
ROLES = {"system": 261, "user": 262, "assistant": 263, "tool": 264}


def said(message: Message) -> list[int]:
    """Ids that say ``message``, the end token included."""
    calls = [json.dumps(call["function"], sort_keys=True) for call in message.get("tool_calls") or ()]
    return [*"".join([message.get("content") or "", *calls]).encode(), END]


def rendered(messages: Sequence[Message]) -> list[int]:
    """Prompt ids of a conversation, ready for the assistant's turn."""
    ids = [token for message in messages for token in (ROLES[message["role"]], *said(message))]
    return [*ids, ROLES["assistant"]]


def unrendered(ids: Sequence[int]) -> tuple[list[Message], list[int]] | None:
    """The messages of a prompt (what was called stands in their content) and the ids of an answer that has begun.

    None: the ids are no such prompt.
    """
    names = {number: role for role, number in ROLES.items()}
    if not ids or ids[0] not in names:
        return None
    messages: list[Message] = []
    begin = 0
    while END in ids[begin:]:
        end = ids.index(END, begin)
        messages.append({"role": names[ids[begin]], "content": bytes(ids[begin + 1 : end]).decode()})
        begin = end + 1
    return messages, list(ids[begin + 1 :])


def derendered(ids: Sequence[int], message: Message) -> Message:
    """What sampled ids say, without their end token: ``message``, if it was not cut."""
    text = {"content": bytes(ids).decode()}
    return {
        "role": "assistant",
        "content": None,
        "reasoning": None,
        **(message if [*ids, END] == said(message) else text),
    }


def too_long(length: int, limit: int) -> dict[str, Any]:
    """vLLM's answer, status 400, to a prompt that leaves no room."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input tokens, "
        "which exceeds this limit even without any output tokens."
    )
    return {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
