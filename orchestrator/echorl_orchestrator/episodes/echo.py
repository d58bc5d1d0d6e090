"""ECHO: which tokens of an episode train by cross-entropy, and how strongly (arXiv 2605.24517).

``ce_weight`` is an environment's alpha for bodies of messages by role, after the first model token; the initial
prompt only where ``system`` or ``user`` have an alpha. Template tokens and token 0 never train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_core.config import EchoConfig, EchoRoleConfig
from echorl_core.wire.batch import MessageRole, Sample, TokenRole


class FilterContractError(ValueError):
    """What a filter returned does not fit the episode; the message names episode and field."""


@dataclass(frozen=True)
class Selection:
    """What ECHO takes of a sequence of T tokens."""

    mask: NDArray[np.bool_]
    """The selected tokens, those of alpha 0 included."""
    ce_weight: NDArray[np.float32]
    """Alpha of each selected token, else 0."""
    leaves_rl: NDArray[np.bool_]
    """Action tokens that ``assistant`` moved from RL to cross-entropy, also with alpha 0."""


def _of_role(sample: Sample, config: EchoRoleConfig, role: MessageRole) -> NDArray[np.bool_]:
    # Context bodies of system and user messages are the initial prompt, which holds no result of a call of the policy.
    places = (TokenRole.ENV_OUTPUT,) if role is MessageRole.TOOL else (TokenRole.CONTEXT, TokenRole.ENV_OUTPUT)
    chosen: NDArray[np.bool_] = np.isin(sample.role, places) & (sample.message_role == role) & (sample.scaffold == 0)
    if config.tool_names is not None:
        allowed = [index for index, name in enumerate(sample.tool_names) if name in config.tool_names]
        chosen &= np.isin(sample.tool, allowed)
    return chosen


def select(sample: Sample, config: EchoConfig) -> Selection:
    """The ECHO tokens of a sample by its provenance."""
    weight = np.zeros(sample.num_tokens, np.float32)
    mask, leaves = np.zeros((2, sample.num_tokens), np.bool_)
    by_role = (
        (config.system, MessageRole.SYSTEM),
        (config.user, MessageRole.USER),
        (config.tool, MessageRole.TOOL),
    )
    for entry, role in by_role:
        if entry is not None:
            chosen = _of_role(sample, entry, role)
            weight[chosen] = entry.alpha
            mask |= chosen
    if config.warning is not None:
        warned = sample.role == TokenRole.WARNING
        weight[warned] = config.warning.alpha
        mask |= warned
    if config.assistant is not None:
        leaves = sample.role == TokenRole.ACTION
        weight[leaves] = config.assistant.alpha
        mask |= leaves
    weight[:1], mask[:1] = 0.0, False
    return Selection(mask, weight, leaves)


def filter_input(samples: Sequence[Sample], episode: dict[str, Any]) -> dict[str, Any]:
    """What a filter hook gets: ``episode`` and, under ``samples``, each sample's tokens as lists."""
    fields = ("token_ids", "role", "message_role", "scaffold", "tool", "turn", "ce_weight")
    rows = [
        {**{name: getattr(sample, name).tolist() for name in fields}, "tool_names": sample.tool_names}
        for sample in samples
    ]
    return {**episode, "samples": rows}


def narrow(samples: Sequence[Sample], keep: Any) -> list[Sample]:
    """The samples without the ECHO tokens that a filter refused.

    Args:
        samples: of one episode.
        keep: the filter's answer: a list of plain bools for each sample, as long as the sample. True keeps.

    An action token that ``assistant`` had moved out of RL, also with alpha 0, and the filter refuses goes back to RL.

    Raises:
        FilterContractError: anything else than that.
    """
    if not isinstance(keep, list) or len(keep) != len(samples):
        found = f"{len(keep)} lists" if isinstance(keep, list) else type(keep).__name__
        episode = samples[0].episode if samples else "?"
        raise FilterContractError(f"episode {episode}: echo.filter: found {found}, accepted are {len(samples)} lists")
    return [_narrowed(sample, row) for sample, row in zip(samples, keep, strict=True)]


def _narrowed(sample: Sample, row: Any) -> Sample:
    where = f"episode {sample.episode}: echo.filter: sample {sample.branch}"
    if not isinstance(row, list) or not all(type(flag) is bool for flag in row):
        raise FilterContractError(f"{where}: accepted is a list of true and false")
    if len(row) != sample.num_tokens:
        raise FilterContractError(f"{where}: found {len(row)} flags for {sample.num_tokens} tokens")
    kept = np.array(row, np.bool_)
    # The mask holds a token that branches share in one of them alone, so it returns to RL once.
    refused = ~kept & sample.ce_selected
    back = refused & (sample.role == TokenRole.ACTION)
    return msgspec.structs.replace(
        sample,
        ce_mask=sample.ce_selected & kept,
        ce_weight=np.where(kept, sample.ce_weight, np.float32(0)).astype(np.float32),
        rl_weight=np.where(back, np.float32(1), sample.rl_weight).astype(np.float32),
    )
