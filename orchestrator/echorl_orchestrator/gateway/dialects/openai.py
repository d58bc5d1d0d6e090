"""OpenAI's chat completions, plain and as server-sent events.

Sampling fields are honoured where training permits them; fields without an effect on tokens are let pass, and all
others are refused.
"""

import json
import time
from collections.abc import Iterator, Mapping, Set
from typing import Any

from echorl_core.config import SamplingConfig
from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.chat.messages import MessageError, wire_message
from echorl_orchestrator.gateway.dialect import Dialect, Reason, Refusal, TurnRequest
from echorl_orchestrator.gateway.sampling import SamplingRefusedError, permitted
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn

_CHUNK_CHARACTERS = 256
_LARGEST_NUMBER = 1e300
"""Integers beyond it are no floats; NaN is not below it."""
_LARGEST_COUNT = 2**31 - 1

# Values that ask for nothing: field -> accepted values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "seed": (None,),
    "stop": (None, []),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "function_call": (None, "auto"),
    "functions": (None, []),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "chat_template_kwargs": (None, {}),
}
_READ = frozenset({"model", "messages", "tools", "stream", "stream_options", "temperature", "top_p", "top_k"}) | {
    "max_tokens",
    "max_completion_tokens",
}
_PENALTIES = {"presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (1e-6, 2.0)}
"""Lowest and highest value, in evals; in training they have to ask for nothing."""
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"}
) | {
    "prompt_cache_key",
    "verbosity",
}


class OpenAiChat:
    """``POST /v1/chat/completions``."""

    path = "/v1/chat/completions"
    heartbeat = ": computing\n\n"
    in_stream: frozenset[Reason] = frozenset()

    def read(self, body: Any, spec: SessionSpec) -> TurnRequest:
        """See ``Dialect``."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise MessageError("messages: missing; accepted is a list of chat messages")
        tools = body.get("tools")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise MessageError("tools: accepted is a list of tool definitions")
        for index, tool in enumerate(tools or ()):
            _check_tool(tool, f"tools[{index}]")
        if not isinstance(body.get("stream_options") or {}, dict):
            raise MessageError("stream_options: accepted is an object")
        try:
            json.dumps(tools, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise MessageError(f"tools: found half a surrogate pair; accepted is text: {error}") from None
        sampling = requested_sampling(body, spec.sampling, evaluation=spec.evaluation)
        offered = tools or [] if body.get("tool_choice") != "none" else []
        return TurnRequest(body["messages"], offered, sampling, stream=bool(body.get("stream")))

    def answer(self, session: GatewaySession, turn: Turn) -> dict[str, Any]:
        """The turn as one chat completion."""
        choice = {
            "index": 0,
            "message": wire_message(turn.message),
            "finish_reason": turn.finish_reason,
            "logprobs": None,
        }
        return {**_head(session, turn, "chat.completion"), "choices": [choice], "usage": _usage(turn)}

    def events(self, session: GatewaySession, turn: Turn, body: Mapping[str, Any]) -> str:
        """The turn as chunks, ``[DONE]`` after them."""
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        chunks = _chunks(session, turn, usage=usage)
        return "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def refusal(self, refusal: Refusal) -> dict[str, Any]:
        """An error object; its type tells whose fault it is, and agents know a prompt that is too long by its words."""
        kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
        too_long = refusal.reason is Reason.PROMPT_TOO_LONG
        message = f"beyond the model's context length: {refusal.message}" if too_long else refusal.message
        error = {"message": message, "type": kind, "param": refusal.field, "code": refusal.reason}
        return {"error": error}

    def failure(self, refusal: Refusal) -> str:
        """The error object as a chunk, which the client raises."""
        return f"data: {json.dumps(self.refusal(refusal))}\n\n"


def _check_tool(tool: Mapping[str, Any], where: str) -> None:
    """Of what codecs, chat templates and engines read of a definition."""
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise MessageError(f"{where}: a tool needs function.name")
    for field, kind, accepted in (("description", str, "text"), ("parameters", dict, "an object")):
        if not isinstance(function.get(field, kind()), kind | None):
            raise MessageError(f"{where}.function.{field}: accepted is {accepted}")


DIALECT: Dialect = OpenAiChat()


def _number(body: Mapping[str, Any], field: str, default: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_NUMBER:
        raise SamplingRefusedError(field, f"found {value!r}, accepted is a finite number")
    return float(value)


def _count(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_COUNT:
        raise SamplingRefusedError(field, f"found {value!r}, accepted is an integer from 1 to {_LARGEST_COUNT}")
    return value


def _refuse_unknown(body: Mapping[str, Any], read: Set[str]) -> None:
    for field, value in body.items():
        if field in read or field in _WITHOUT_EFFECT:
            continue
        if field not in _NEUTRAL:
            raise SamplingRefusedError(field, "unknown field")
        if value not in _NEUTRAL[field]:
            accepted = ", ".join(repr(neutral) for neutral in _NEUTRAL[field] if neutral is not None) or "none"
            raise SamplingRefusedError(
                field, f"not supported yet: found {value!r}; accepted: leave it out, or {accepted}"
            )


def requested_sampling(body: Mapping[str, Any], default: SamplingConfig, *, evaluation: bool) -> SamplingConfig:
    """The sampling that a request asks for; fields it leaves out are the environment's.

    Raises:
        SamplingRefusedError: a field that training refuses (see ``permitted``) or that nothing implements, or a value
            out of range.
    """
    _refuse_unknown(body, _READ | _PENALTIES.keys() if evaluation else _READ)
    temperature = _number(body, "temperature", default.temperature)
    top_p = _number(body, "top_p", default.top_p)
    top_k = _count(body, "top_k") if body.get("top_k") not in (None, -1, 0) else default.top_k
    limit = _count(body, "max_completion_tokens") or _count(body, "max_tokens") or default.max_completion_tokens
    asked = permitted(temperature, top_p, top_k, limit, evaluation=evaluation)
    return asked.model_copy(update={name: _penalty(body, name, default) for name in _PENALTIES})


def _penalty(body: Mapping[str, Any], field: str, default: SamplingConfig) -> float:
    lowest, highest = _PENALTIES[field]
    value = _number(body, field, getattr(default, field))
    if not lowest <= value <= highest:
        raise SamplingRefusedError(field, f"found {value:g}, accepted is a number from {lowest:g} to {highest:g}")
    return value


def _usage(turn: Turn) -> dict[str, int]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }


def _head(session: GatewaySession, turn: Turn, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{session.spec.key}-{turn.number}",
        "object": kind,
        "created": int(time.time()),
        "model": SERVED_MODEL_NAME,
    }


def _chunks(session: GatewaySession, turn: Turn, *, usage: bool) -> Iterator[dict[str, Any]]:
    """The finished turn as the chunks of a stream; the last one before ``[DONE]`` has the usage if asked for."""
    head = _head(session, turn, "chat.completion.chunk")
    message = wire_message(turn.message)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for field in ("reasoning_content", "content"):
        text = message.get(field) or ""
        pieces = [text[start : start + _CHUNK_CHARACTERS] for start in range(0, len(text), _CHUNK_CHARACTERS)]
        deltas += [{field: piece} for piece in pieces]
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(message.get("tool_calls", ()))]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": turn.finish_reason}]}
    if usage:
        yield {**head, "choices": [], "usage": _usage(turn)}
