"""Chats as a fake engine renders and answers them: one token a byte, so that tests can compute every id.

A message is its role's token, the bytes of what it says, and the end token; an assistant message that comes back
renders to exactly the tokens that were sampled for it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]
Reply = Callable[[Sequence[Message]], Message]
"""What the fake model says to a conversation: content, and tool_calls in OpenAI's form."""

PATH = "/v1/chat/completions"
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


def chat_answer(request: dict[str, Any], ids: list[int], logprobs: list[float], message: Message) -> dict[str, Any]:
    """A chat completion of ``ids``, as vLLM answers a request for ids and logprobs."""
    cut = ids[-1:] != [END]
    reason = "tool_calls" if message.get("tool_calls") else "length" if cut else "stop"
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "reasoning": None, **message},
        "logprobs": {"content": content},
        "finish_reason": reason,
        "token_ids": ids,
    }
    return {"id": "chat", "choices": [choice], "prompt_token_ids": rendered(request["messages"])}


def too_long(length: int, limit: int) -> dict[str, Any]:
    """vLLM's answer, status 400, to a prompt that leaves no room."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input tokens, "
        "which exceeds this limit even without any output tokens."
    )
    return {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
