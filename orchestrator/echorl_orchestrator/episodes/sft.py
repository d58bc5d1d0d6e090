"""Supervised fine-tuning: conversations as samples, with cross-entropy on the tokens of the trained roles.

ce_weight = 1 on the bodies of messages of ``trainRoles``; the body of a model's message is what it would sample,
its calls and the token that ends its turn included. Template tokens and token 0 never train.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_core.config import SftConfig
from echorl_core.wire.batch import MessageRole, Sample
from echorl_orchestrator.chat.messages import Tool, canonical_message, name_results
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.episodes.samples import Built, Owner, sample_of
from echorl_orchestrator.gateway.prompts import tool_index
from echorl_orchestrator.gateway.tokens import Columns, prompt_columns


@dataclass(frozen=True)
class Talk:
    """A conversation to learn from."""

    messages: Sequence[Mapping[str, Any]]
    """OpenAI chat messages."""
    tools: Sequence[Tool] = ()
    context: frozenset[int] = frozenset()
    """Messages that are never targets: an earlier talk trains them, or nobody should."""


@dataclass(frozen=True)
class SftSamples:
    """The samples of an episode's talks."""

    built: Built
    truncated: bool
    """Whether a talk was longer than a sample may be."""


def targets(sample: Sample, config: SftConfig) -> NDArray[np.bool_]:
    """Which tokens are learned: bodies of the trained roles; of tool outputs those of the allowed tools."""
    roles = [MessageRole[name.upper()] for name in config.train_roles]
    chosen: NDArray[np.bool_] = np.isin(sample.message_role, roles) & (sample.scaffold == 0)
    if config.tool_names is not None:
        allowed = [index for index, name in enumerate(sample.tool_names) if name in config.tool_names]
        chosen &= (sample.message_role != MessageRole.TOOL) | np.isin(sample.tool, allowed)
    chosen[:1] = False
    return chosen


def sft_samples(
    codec: ChatCodec, talks: Sequence[Talk], owner: Owner, config: SftConfig, *, max_tokens: int, reward: float | None
) -> SftSamples:
    """One sample for each talk with a target in its first ``max_tokens`` tokens; what is beyond them is left out.

    Raises:
        MessageError: a message that no codec takes.
    """
    samples: list[Sample] = []
    truncated = False
    for number, talk in enumerate(talks):
        names: list[str] = []
        columns, message = _columns(codec, talk, names)
        truncated |= len(columns) > max_tokens
        sample = sample_of(columns.head(max_tokens), number, owner, names, reward)
        learned = targets(sample, config) & ~np.isin(message[:max_tokens], list(talk.context))
        if learned.any():
            samples.append(msgspec.structs.replace(sample, ce_weight=learned.astype(np.float32)))
    kept = sum(int(sample.ce_weight.sum()) for sample in samples)
    return SftSamples(Built(samples, 0, kept, 0, 0), truncated)


def _columns(codec: ChatCodec, talk: Talk, names: list[str]) -> tuple[Columns, NDArray[np.int32]]:
    """The talk's tokens, and the number of the message that each belongs to (-1: none)."""
    messages = [canonical_message(message, index) for index, message in enumerate(talk.messages)]
    name_results(messages)
    rendered = codec.conversation(messages, talk.tools)
    columns = prompt_columns(rendered, messages, range(1, 1 + len(messages)), tool_index(names, messages))
    said = rendered.body & (columns.message_role == MessageRole.ASSISTANT)
    # A turn's number marks where the environment begins to answer; without a logprob nothing of it is an action.
    return replace(columns, turn=np.where(said, rendered.message, -1).astype(np.int32)), rendered.message
