"""A short chatml format with plain tool calls, for byte-level tokenizers where every character costs a token.

    <|im_start|>user
    port?<|im_end|>
    <|im_start|>assistant
    <tool_call>grep port</tool_call><|im_end|>
    <|im_start|>user
    <tool_response>etc/a</tool_response><|im_end|>
    <|im_start|>assistant

A call is the tool's name and then its arguments in the order of the tool's parameters, separated by single spaces;
the last parameter takes the rest. Tool definitions are not shown to the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.codec.protocol import Parsed, Rendered, WarningSpans
from echorl_orchestrator.codec.spans import overlapping
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.failures import BadInputError

_MARKERS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def _parameters(name: str, tools: Sequence[Tool]) -> Mapping[str, Any] | None:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties: Mapping[str, Any] = (function.get("parameters") or {}).get("properties") or {}
            return properties
    return None


def _typed(value: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    try:
        if kind == "integer":
            return int(value)
        if kind == "number":
            return float(value)
    except ValueError:
        return value
    return {"true": True, "false": False}.get(value, value) if kind == "boolean" else value


def read_call(text: str, tools: Sequence[Tool]) -> dict[str, Any]:
    """The call that ``text`` spells. The arguments of an unknown tool are one string under ``input``."""
    name, _, rest = text.partition(" ")
    properties = _parameters(name, tools)
    if properties is None:
        return {"name": name, "arguments": {"input": rest} if rest else {}}
    values = rest.split(" ", len(properties) - 1) if rest and properties else []
    pairs = zip(properties.items(), values, strict=False)
    return {"name": name, "arguments": {key: _typed(value, schema) for (key, schema), value in pairs}}


def write_call(call: Mapping[str, Any], tools: Sequence[Tool]) -> str:
    """The text of a call: the inverse of ``read_call``."""
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        return f"{function['name']} {arguments}"
    order = [key for key in _parameters(function["name"], tools) or () if key in arguments]
    keys = [*order, *(key for key in arguments if key not in order)]
    words = (str(arguments[key]).lower() if isinstance(arguments[key], bool) else str(arguments[key]) for key in keys)
    return " ".join([function["name"], *words])


class CompactCodec:
    """The format above. Each body is encoded by itself, so attribution is exact for any tokenizer."""

    attributed = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        ids = [tokenizer.convert_tokens_to_ids(marker) for marker in _MARKERS]
        missing = [
            marker for marker, token in zip(_MARKERS, ids, strict=True) if token in (None, tokenizer.unk_token_id)
        ]
        if missing:
            raise BadInputError(f"model.renderer: 'compact' needs the tokens {', '.join(missing)} in the tokenizer")
        self._start, self._end, self._call, self._call_end, self._response, self._response_end = ids
        end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        has_end_of_text = end_of_text not in (None, tokenizer.unk_token_id)
        self.stop_ids: tuple[int, ...] = (self._end, end_of_text) if has_end_of_text else (self._end,)
        self._newline = tokenizer.encode("\n")
        self._generation = [self._start, *tokenizer.encode("assistant\n")]
        self._openers = {
            role: [self._start, *tokenizer.encode(f"{role}\n")] for role in ("system", "user", "assistant")
        }

    def _body(self, text: str, message: int, spans: Sequence[tuple[int, int]]) -> Rendered:
        ids, offsets = self._tokenizer.encode_plain(text)
        warning = overlapping(ids, ids, offsets, spans) if spans else np.zeros(len(ids), np.bool_)
        return Rendered(ids, np.full(len(ids), message, np.int32), np.ones(len(ids), np.bool_), warning)

    def action_ids(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        """What the model would sample to say ``message``, the end token included."""
        ids, _ = self._tokenizer.encode_plain(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            text, _ = self._tokenizer.encode_plain(write_call(call, tools))
            ids += [self._call, *text, self._call_end]
        return [*ids, self._end]

    def _turns(self, messages: Sequence[Message], tools: Sequence[Tool], warnings: WarningSpans) -> list[Rendered]:
        pieces: list[Rendered] = []
        for index, message in enumerate(messages):
            role = message["role"]
            if role == "assistant":
                pieces += [
                    Rendered.uniform(self._openers[role], index),
                    Rendered.uniform(self.action_ids(message, tools), index, body=True),
                    Rendered.uniform(self._newline, index),
                ]
                continue
            body = self._body(message.get("content") or "", index, warnings.get(index, ()))
            if role == "tool":
                first = index == 0 or messages[index - 1]["role"] != "tool"
                last = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
                opener = [*(self._openers["user"] if first else ()), self._response]
                closer = [self._response_end, *([self._end, *self._newline] if last else ())]
            else:
                opener, closer = self._openers[role], [self._end, *self._newline]
            pieces += [Rendered.uniform(opener, index), body, Rendered.uniform(closer, index)]
        return [*pieces, Rendered.uniform(self._generation)]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], warnings: WarningSpans) -> Rendered:
        """See ``ChatCodec``."""
        return Rendered.joined(self._turns(messages, tools, warnings))

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        """See ``ChatCodec``."""
        *turns, _ = self._turns(messages, tools, {})
        return Rendered.joined(turns)

    def extend(
        self,
        prompt_tail: Sequence[int],
        sampled: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        warnings: WarningSpans,
    ) -> Rendered | None:
        """See ``ChatCodec``. Assistant messages are refused: their tokens must be the sampled ones."""
        if any(message["role"] == "assistant" for message in messages):
            return None
        closed = bool(sampled) and sampled[-1] == self._end
        bridge = Rendered.uniform([*(() if closed else (self._end,)), *self._newline])
        return Rendered.joined([bridge, *self._turns(messages, tools, warnings)])

    def parse(self, prompt_tail: Sequence[int], sampled: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """See ``ChatCodec``."""
        text: list[int] = []
        calls: list[dict[str, Any]] = []
        call: list[int] | None = None
        malformed = False
        for token in sampled:
            if token in self.stop_ids:
                break
            if token == self._call:
                malformed |= call is not None
                call = []
            elif token == self._call_end:
                malformed |= call is None
                if call is not None:
                    calls.append(read_call(self._tokenizer.decode(call), tools))
                call = None
            elif call is not None:
                call.append(token)
            else:
                text.append(token)
        return Parsed(self._tokenizer.decode(text), calls, malformed=malformed or call is not None)

    def text(self, ids: Sequence[int]) -> str:
        """See ``ChatCodec``."""
        return self._tokenizer.decode([token for token in ids if token not in self.stop_ids])
