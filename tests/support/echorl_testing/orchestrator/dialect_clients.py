"""Clients of the gateway's dialects as agents are: they keep a conversation as it stood on the wire."""

import copy
from collections.abc import Callable
from typing import Any

from echorl_orchestrator.gateway.dialect import Dialect
from echorl_orchestrator.gateway.dialects import anthropic, openai, responses
from echorl_testing.orchestrator.served_gateway import GREP_TOOL, PARAMETERS

Talk = list[dict[str, Any]]


class ChatClient:
    """OpenAI's chat completions."""

    dialect: Dialect = openai.DIALECT

    def body(self, talk: Talk) -> dict[str, Any]:
        """A request with the whole conversation."""
        return {"messages": talk, "tools": [GREP_TOOL]}

    def told(self, talk: Talk, text: str) -> Talk:
        """The conversation with what comes next: results of the calls at its end, or else the user."""
        calls = (talk[-1].get("tool_calls") or []) if talk else []
        results = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        return [*talk, *(results or [{"role": "user", "content": text}])]

    def heard(self, talk: Talk, answer: dict[str, Any]) -> Talk:
        """The conversation with an answer."""
        return [*talk, answer["choices"][0]["message"]]

    def retold(self, talk: Talk, change: Callable[[str], str]) -> Talk:
        """The conversation with other words at its end."""
        said = copy.deepcopy(talk)
        if said and said[-1].get("content"):
            said[-1]["content"] = change(said[-1]["content"])
        return said


class MessagesClient:
    """Anthropic's Messages."""

    dialect: Dialect = anthropic.DIALECT

    def body(self, talk: Talk) -> dict[str, Any]:
        """See ``ChatClient``; the last message has a cache mark, as agents set one."""
        marked = copy.deepcopy(talk)
        if marked and isinstance(marked[-1]["content"], list):
            marked[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        tools = [{"name": "grep", "input_schema": PARAMETERS}]
        return {"messages": marked, "tools": tools, "max_tokens": 4096, "temperature": 0.3}

    def told(self, talk: Talk, text: str) -> Talk:
        """See ``ChatClient``."""
        blocks = talk[-1]["content"] if talk else []
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call, "content": text} for call in calls]
        return [*talk, {"role": "user", "content": results or [{"type": "text", "text": text}]}]

    def heard(self, talk: Talk, answer: dict[str, Any]) -> Talk:
        """See ``ChatClient``."""
        return [*talk, {"role": "assistant", "content": answer["content"]}]

    def retold(self, talk: Talk, change: Callable[[str], str]) -> Talk:
        """See ``ChatClient``."""
        said = copy.deepcopy(talk)
        for block in said[-1]["content"] if said else []:
            if block["type"] == "text":
                block["text"] = change(block["text"])
        return said


class ResponsesClient:
    """OpenAI's Responses."""

    dialect: Dialect = responses.DIALECT

    def body(self, talk: Talk) -> dict[str, Any]:
        """See ``ChatClient``."""
        tools = [{"type": "function", "name": "grep", "parameters": PARAMETERS}]
        return {"input": talk, "tools": tools, "store": False, "temperature": 0.3}

    def told(self, talk: Talk, text: str) -> Talk:
        """See ``ChatClient``."""
        answered = {item["call_id"] for item in talk if item["type"] == "function_call_output"}
        calls = [item["call_id"] for item in talk if item["type"] == "function_call"]
        results: Talk = [
            {"type": "function_call_output", "call_id": call, "output": text} for call in calls if call not in answered
        ]
        return [*talk, *(results or [{"type": "message", "role": "user", "content": text}])]

    def heard(self, talk: Talk, answer: dict[str, Any]) -> Talk:
        """See ``ChatClient``."""
        return [*talk, *answer["output"]]

    def retold(self, talk: Talk, change: Callable[[str], str]) -> Talk:
        """See ``ChatClient``."""
        said = copy.deepcopy(talk)
        if said and said[-1]["type"] == "message":
            said[-1]["content"][0]["text"] = change(said[-1]["content"][0]["text"])
        return said


CLIENTS = (ChatClient(), MessagesClient(), ResponsesClient())
