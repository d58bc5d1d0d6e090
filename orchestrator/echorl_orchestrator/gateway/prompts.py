"""From a request's messages to the token ids that are sent: what is kept of an earlier branch, and what is new."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echorl_orchestrator.chat.messages import Tool
from echorl_orchestrator.codec.protocol import ChatCodec, Rendered, WarningSpans
from echorl_orchestrator.gateway.history import Branch, Continuation, History, Node
from echorl_orchestrator.gateway.tokens import Columns, prompt_columns


@dataclass(frozen=True)
class Conversation:
    """A request after it was made canonical."""

    messages: list[dict[str, Any]]
    nodes: list[Node]
    """The place of each message in the history."""
    tools: Sequence[Tool]
    tools_key: str
    warnings: WarningSpans


@dataclass(frozen=True)
class Prompt:
    """The first ``kept`` tokens of ``parent``, then ``new``."""

    parent: Branch | None
    kept: int
    new: Columns
    in_place: bool
    """The new tokens extend ``parent`` itself; else they begin a branch."""
    tail: int
    """Where the part that codecs need to see of it begins: at the last turn's end, or at 0 if rendered as a whole."""

    @property
    def ids(self) -> "array[int]":
        """Ids of all tokens of the prompt, those that it shares with ``parent`` first."""
        whole = self.parent.ids[: self.kept] if self.parent else array("i")
        whole.frombytes(self.new.ids.tobytes())
        return whole

    @property
    def routed(self) -> int:
        """How many of its first tokens have experts that are known."""
        return min(self.kept, len(self.parent.routed)) if self.parent else 0

    @property
    def tail_ids(self) -> list[int]:
        """Token ids from ``tail`` on."""
        return self.new.ids.tolist() if self.tail == self.kept else self.ids[self.tail :].tolist()

    def __len__(self) -> int:
        return self.kept + len(self.new)


def tool_index(names: list[str], messages: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Number of each tool name; ``names`` grows by those that ``messages`` bring."""
    for message in messages:
        name = message.get("name")
        if message["role"] == "tool" and name and name not in names:
            names.append(name)
    return {name: number for number, name in enumerate(names)}


def _extended(codec: ChatCodec, prior: Continuation, talk: Conversation, names: list[str]) -> Prompt | None:
    end, ids = prior.end, prior.branch.ids
    messages = talk.messages[prior.messages :]
    shifted = {index - prior.messages: spans for index, spans in talk.warnings.items() if index >= prior.messages}
    tail, sampled = ids[end.prompt_tail : end.sampled], ids[end.sampled : end.tokens]
    rendered = codec.extend(tail.tolist(), sampled.tolist(), messages, talk.tools, shifted)
    if rendered is None:
        return None
    uids = [node.uid for node in talk.nodes[prior.messages :]]
    new = prompt_columns(rendered, messages, uids, tool_index(names, messages))
    return Prompt(prior.branch, end.tokens, new, prior.in_place, tail=end.tokens)


def prepare(
    codec: ChatCodec, history: History, prior: Continuation | None, talk: Conversation, names: list[str]
) -> Prompt:
    """The prompt of a request.

    What continues a turn is appended to that turn's exact tokens. Where that is impossible (first request, changed
    messages, a template that rewrites the past) the whole conversation is rendered; it shares the tokens at its
    beginning that are equal to those of an earlier branch, logprobs and all, and the rest is context.
    """
    if prior is not None and (prompt := _extended(codec, prior, talk, names)) is not None:
        return prompt
    rendered = codec.render(talk.messages, talk.tools, talk.warnings)
    parent, kept = history.longest_shared(rendered.ids)
    uids = [node.uid for node in talk.nodes]
    columns = prompt_columns(rendered, talk.messages, uids, tool_index(names, talk.messages))
    in_place = prior is not None and prior.in_place and parent is prior.branch and kept == len(prior.branch.ids)
    return Prompt(parent, kept, columns.tail(kept), in_place, tail=0)


def returned_prompt(history: History, prior: Continuation | None, ids: list[int]) -> Prompt:
    """The prompt that an engine rendered, known only by its ids: nothing is attributed."""
    parent, kept = history.longest_shared(ids)
    in_place = prior is not None and prior.in_place and parent is prior.branch and kept == len(prior.branch.ids)
    return Prompt(parent, kept, prompt_columns(Rendered.uniform(ids[kept:]), [], [], {}), in_place, tail=0)
