"""Codec over the ``renderers`` package: hand-written, attributed templates of the common model families."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from renderers import ParsedResponse, RenderedTokens, ToolCallParseStatus, create_renderer
from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import _CONFIG_BY_NAME, config_from_name

from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.codec.protocol import Parsed, Rendered, WarningSpans
from echorl_orchestrator.codec.spans import overlapping
from echorl_orchestrator.codec.tokenizer import TextTokenizer, read_json
from echorl_orchestrator.failures import BadInputError

FAMILIES = tuple(sorted(set(_CONFIG_BY_NAME) - {"auto", "default"}))
"""Accepted names. The package's ``default`` (any Jinja template) attributes nothing and re-renders every turn."""


def _candidates(folder: Path) -> list[str]:
    """Names that the model of ``folder`` may be known by, the most telling first."""
    named = [read_json(folder / file).get("_name_or_path") for file in ("config.json", "tokenizer_config.json")]
    named.append(read_json(folder / "tokenizer_config.json").get("name_or_path"))
    snapshot = folder.resolve().parent.parent.name
    if snapshot.startswith("models--"):
        named.append(snapshot.removeprefix("models--").replace("--", "/"))
    return [name for name in [*named, folder.name] if isinstance(name, str) and name]


def family_of(folder: Path) -> tuple[str, str]:
    """Family and canonical name of the model in ``folder``, by its config or its folder's name.

    Raises:
        BadInputError: no known name; the message lists the families.
    """
    candidates = _candidates(folder)
    for candidate in candidates:
        if candidate in MODEL_RENDERER_MAP:
            return MODEL_RENDERER_MAP[candidate], candidate
        short = candidate.rstrip("/").rsplit("/", 1)[-1]
        matching = [name for name in MODEL_RENDERER_MAP if name.rsplit("/", 1)[-1] == short]
        families = sorted({MODEL_RENDERER_MAP[name] for name in matching})
        if len(families) == 1:
            return families[0], matching[0]
        if families:
            raise BadInputError(
                f"model.renderer: 'auto' takes {short!r} for {' or '.join(matching)}; name one of {families}"
            )
    raise BadInputError(
        f"model.renderer: 'auto' does not know the model of {folder} (looked for {', '.join(map(repr, candidates))}); "
        f"accepted are {', '.join(FAMILIES)}, 'compact' and 'engine'"
    )


class RenderersCodec:
    """One family of ``renderers``."""

    attributed = True

    def __init__(self, tokenizer: TextTokenizer, family: str) -> None:
        if family not in FAMILIES:
            raise BadInputError(
                f"model.renderer: found {family!r}; accepted are 'auto', {', '.join(FAMILIES)}, 'compact' and 'engine'"
            )
        self._tokenizer = tokenizer
        try:
            self._renderer = create_renderer(tokenizer, cast(Any, config_from_name(family)))
            self.stop_ids = tuple(int(token) for token in self._renderer.get_stop_token_ids())
        except (AssertionError, ImportError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise BadInputError(
                f"model.renderer: {family!r} does not fit the tokenizer of {tokenizer.name_or_path!r}: {error}"
            ) from error

    def _rendered(
        self, tokens: RenderedTokens, start: int, messages: Sequence[Message], warnings: WarningSpans
    ) -> Rendered:
        ids = tokens.token_ids[start:]
        message = np.asarray(tokens.message_indices[start:], np.int32)
        body = np.asarray(tokens.is_content[start:], np.bool_)
        if not len(ids) == len(message) == len(body):
            raise RuntimeError(f"renderer attributed {len(message)} and {len(body)} of {len(ids)} tokens")
        warning = np.zeros(len(ids), np.bool_)
        for index, spans in warnings.items():
            places = np.flatnonzero((message == index) & body)
            own = self._tokenizer(messages[index]["content"])
            overlaps = overlapping([ids[place] for place in places], own["input_ids"], own["offset_mapping"], spans)
            warning[places] = overlaps
        return Rendered(ids, message, body, warning)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], warnings: WarningSpans) -> Rendered:
        """See ``ChatCodec``."""
        return self._rendered(self._whole(messages, tools, generation=True), 0, messages, warnings)

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        """See ``ChatCodec``. ``renderers`` counts the end of a model's turn as its content."""
        return self._rendered(self._whole(messages, tools, generation=False), 0, messages, {})

    def _whole(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation: bool) -> RenderedTokens:
        return self._renderer.render(
            cast(Any, [dict(message) for message in messages]),
            tools=cast(Any, list(tools)) or None,
            add_generation_prompt=generation,
        )

    def extend(
        self,
        prompt_tail: Sequence[int],
        sampled: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        warnings: WarningSpans,
    ) -> Rendered | None:
        """See ``ChatCodec``. None also when the family's template drops earlier reasoning at a user turn."""
        prefix = [*prompt_tail, *sampled]
        tokens = self._renderer.bridge_to_next_turn(
            list(prompt_tail),
            list(sampled),
            cast(Any, [dict(message) for message in messages]),
            tools=cast(Any, list(tools)) or None,
        )
        if tokens is None or tokens.token_ids[: len(prefix)] != prefix:
            return None
        return self._rendered(tokens, len(prefix), messages, warnings)

    def parse(self, prompt_tail: Sequence[int], sampled: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """See ``ChatCodec``."""
        try:
            parsed: ParsedResponse = self._renderer.parse_response(
                list(sampled), tools=cast(Any, list(tools)) or None, prompt_ids=list(prompt_tail)
            )
        except (RecursionError, TypeError, ValueError):
            # A model may write JSON that Python does not take: deep brackets, thousands of digits, a list as name.
            return Parsed(self.text(sampled), malformed=True)
        calls: list[dict[str, Any]] = []
        malformed = False
        for call in parsed.tool_calls:
            named = isinstance(call.name, str) and bool(call.name)
            if call.status is ToolCallParseStatus.OK and named and isinstance(call.arguments, dict):
                calls.append({"name": call.name, "arguments": call.arguments, **({"id": call.id} if call.id else {})})
            else:
                malformed = True
        return Parsed(parsed.content, calls, parsed.reasoning_content, malformed)

    def text(self, ids: Sequence[int]) -> str:
        """See ``ChatCodec``."""
        return self._tokenizer.decode([token for token in ids if token not in self.stop_ids])
