"""Brings batches from the wire to the device: which tokens are scored, and what the losses need to know of each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echorl_core.routing import RouterShape
from echorl_core.wire.batch import MicroBatch, TokenRole
from echorl_trainer.context import row_counts
from echorl_trainer.losses import RlSequences
from echorl_trainer.model import PackedTokens
from echorl_trainer.routers import NOT_GIVEN

Source = tuple[str, str]
"""Environment of a token, and the tool that wrote it ("": none, or not told)."""


@dataclass(frozen=True)
class ScoredBatch:
    """One micro-batch on the device: T packed tokens, and columns over its K scored ones."""

    tokens: PackedTokens
    sampler_logprobs: Tensor
    """float32 [K]; 0 on tokens that no engine sampled."""
    advantages: Tensor
    """float32 [K]."""
    rl_weight: Tensor
    """float32 [K]."""
    ce_weight: Tensor
    """float32 [K]."""
    is_action: Tensor
    """bool [K]: sampled by an engine."""
    is_env_output: Tensor
    """bool [K]: written by the environment."""
    is_current: Tensor
    """bool [K]: an action token sampled wholly under the version that the trainer holds."""
    source: Tensor
    """int64 [K]: index into the sources that ``score_batch`` was given."""
    sequences: RlSequences
    teacher_logprobs: Tensor | None = None
    """float32 [K]; None where no teacher was asked."""


def sources_of(micro_batches: Iterable[MicroBatch]) -> list[Source]:
    """Every source that a token of these may have, sorted."""
    return sorted(
        {
            (environment, tool)
            for micro in micro_batches
            for environment in set(micro.environments)
            for tool in ("", *micro.tool_names)
        }
    )


def score_batch(
    micro: MicroBatch,
    *,
    sources: Sequence[Source],
    version: int,
    vocab_size: int,
    device: torch.device,
    context: int = 1,
    routing: RouterShape | None = None,
) -> ScoredBatch:
    """Check a micro-batch and bring it to ``device`` (without waiting, on CUDA).

    Scored are tokens with a weight in any component, action tokens (for the logprob gap) and environment output (for
    ``env_nll``, with or without ECHO); a document's first token never is. ``context``: ranks that share the pack.
    ``routing``: the model's routers; None: it has none.

    Raises:
        ValueError: columns disagree in length, a first token has a weight, or a value is out of range.
    """
    starts = _starts(micro)
    weighted = (micro.rl_weight != 0) | (micro.ce_weight != 0)
    wanted = weighted | (micro.role == TokenRole.ACTION) | (micro.role == TokenRole.ENV_OUTPUT)
    wanted[starts[:-1]] = False
    _check_values(micro, starts, wanted, vocab_size)
    rows = np.flatnonzero(wanted)
    lengths = micro.lengths.astype(np.int64)
    role = micro.role[rows]
    fresh = (micro.version_low[rows] == version) & (micro.version_high[rows] == version)
    floats = np.stack(
        [
            column[rows].astype(np.float32)
            for column in (micro.logprobs, micro.advantage, micro.rl_weight, micro.ce_weight)
        ]
    )
    flags = np.stack([role == TokenRole.ACTION, role == TokenRole.ENV_OUTPUT, (role == TokenRole.ACTION) & fresh])
    positions = np.arange(len(micro.token_ids)) - np.repeat(starts[:-1], lengths)
    integers = _to_device(np.stack([micro.token_ids.astype(np.int64), positions]), device)
    packed = PackedTokens(
        token_ids=integers[0],
        positions=integers[1],
        cu_seqlens=_to_device(starts.astype(np.int32), device),
        max_len=int(lengths.max()),
        rows=_to_device(rows.astype(np.int64), device),
        temperature=_to_device(micro.temperature.astype(np.float32), device),
        row_counts=row_counts(rows, len(micro.token_ids), context),
        experts=_experts(micro, starts, routing, device),
    )
    source = _to_device(_sources(micro, sources)[rows], device)
    sampler_logprobs, advantages, rl_weight, ce_weight = _to_device(floats, device)
    is_action, is_env_output, is_current = _to_device(flags, device)
    return ScoredBatch(
        tokens=packed,
        sampler_logprobs=sampler_logprobs,
        advantages=advantages,
        rl_weight=rl_weight,
        ce_weight=ce_weight,
        is_action=is_action,
        is_env_output=is_env_output,
        is_current=is_current,
        source=source,
        sequences=_sequences(micro, starts, rows, device),
        teacher_logprobs=_teacher(micro, rows, device),
    )


def _experts(
    micro: MicroBatch, starts: NDArray[np.int64], routing: RouterShape | None, device: torch.device
) -> Tensor | None:
    """Int [T, layers, k], ``NOT_GIVEN`` for tokens that no engine told the experts of; None: it told none."""
    if micro.experts is None:
        return None
    told = np.array(micro.routed_tokens, np.int64)
    if routing is None or len(told) != len(micro.lengths) or (told < 0).any() or (told > micro.lengths).any():
        found = f"found experts of {told.tolist()} tokens"
        raise ValueError(f"micro-batch {micro.sample_ids}: {found}, accepted are a mixture's, up to {micro.lengths}")
    width = routing.layers * routing.top_k
    if micro.experts.size != told.sum() * width:
        found = f"experts: found {micro.experts.size} numbers of {told.sum()} tokens"
        raise ValueError(f"micro-batch {micro.sample_ids}: {found}, accepted are {width} of each")
    choices = micro.experts.reshape(-1, routing.layers, routing.top_k)
    if (offence := routing.offence(choices)) is not None:
        raise ValueError(f"micro-batch {micro.sample_ids}: {offence}")
    # Signed, and on the device no wider than it has to be.
    table = np.full((int(starts[-1]), *choices.shape[1:]), NOT_GIVEN, np.min_scalar_type(-routing.experts))
    begins = np.cumsum(told) - told
    table[np.arange(told.sum()) + np.repeat(starts[:-1] - begins, told)] = choices
    return _to_device(table, device)


def _teacher(micro: MicroBatch, rows: NDArray[np.int64], device: torch.device) -> Tensor | None:
    if micro.ref_logprobs is None:
        return None
    return _to_device(micro.ref_logprobs[rows].astype(np.float32), device)


def _sources(micro: MicroBatch, sources: Sequence[Source]) -> NDArray[np.int64]:
    """Index into ``sources`` of each of T tokens."""
    number = {source: index for index, source in enumerate(sources)}
    # Column 0 is for tokens without a tool.
    table = [[number[environment, tool] for tool in ("", *micro.tool_names)] for environment in micro.environments]
    document = np.repeat(np.arange(len(micro.lengths)), micro.lengths)
    column = np.zeros(len(document), np.int64) if micro.tool is None else micro.tool.astype(np.int64) + 1
    return np.array(table, np.int64)[document, column]


def _sequences(
    micro: MicroBatch, starts: NDArray[np.int64], rows: NDArray[np.int64], device: torch.device
) -> RlSequences:
    trained = np.flatnonzero(micro.rl_weight[rows] != 0)
    document = np.searchsorted(starts, rows[trained], side="right") - 1
    found, lengths = np.unique(document, return_counts=True)
    return RlSequences(
        rows=_to_device(trained, device),
        lengths=lengths.tolist(),
        environments=[micro.environments[index] for index in found],
        sample_ids=[micro.sample_ids[index] for index in found],
    )


def _to_device(values: NDArray[np.generic], device: torch.device) -> Tensor:
    # Columns off the wire stand anywhere in their message; kernels want theirs aligned.
    tensor = torch.from_numpy(np.require(values, requirements=["C", "A"]))
    if device.type == "cpu":
        return tensor
    pinned = torch.empty_like(tensor, pin_memory=True)
    # Not torch's copy: it wakes threads, for which the loop waits for milliseconds while the device has nothing to do.
    pinned.numpy()[...] = values
    return pinned.to(device, non_blocking=True)


def _starts(micro: MicroBatch) -> NDArray[np.int64]:
    """First token of each document, and T."""
    columns = (
        micro.token_ids, micro.role, micro.logprobs, micro.version_low, micro.version_high,
        micro.rl_weight, micro.ce_weight, micro.advantage, micro.temperature,
        *(() if micro.ref_logprobs is None else (micro.ref_logprobs,)),
        *(() if micro.tool is None else (micro.tool,)),
    )  # fmt: skip
    starts = np.concatenate([[0], np.cumsum(micro.lengths, dtype=np.int64)])
    if any(len(column) != starts[-1] for column in columns):
        found = sorted({len(column) for column in columns})
        raise ValueError(f"micro-batch {micro.sample_ids}: lengths sum to {starts[-1]}, columns have {found}")
    if len({len(micro.sample_ids), len(micro.environments), len(micro.lengths)}) != 1 or not len(micro.lengths):
        raise ValueError(f"micro-batch {micro.sample_ids}: sample_ids, environments and lengths differ in number")
    if (micro.lengths < 1).any():
        raise ValueError(f"micro-batch {micro.sample_ids}: a document has no tokens")
    return starts


def _not_a_tool(micro: MicroBatch) -> NDArray[np.bool_]:
    if micro.tool is None:
        return np.zeros(len(micro.token_ids), np.bool_)
    return np.asarray((micro.tool < -1) | (micro.tool >= len(micro.tool_names)))


def _check_values(micro: MicroBatch, starts: NDArray[np.int64], wanted: NDArray[np.bool_], vocab_size: int) -> None:
    """Check values on the host: one out of range on a GPU would end the process with an unreadable assertion."""
    weighted = (micro.rl_weight != 0) | (micro.ce_weight != 0)
    offences = {
        f"token_ids outside 0..{vocab_size - 1}": (micro.token_ids < 0) | (micro.token_ids >= vocab_size),
        "a scored token whose temperature is not above 0": wanted & ~(micro.temperature > 0),
        f"tool outside -1..{len(micro.tool_names) - 1}": _not_a_tool(micro),
        "a weight on a document's first token": np.isin(np.arange(len(weighted)), starts[:-1]) & weighted,
    }
    for what, where in offences.items():
        if where.any():
            document = int(np.searchsorted(starts, np.flatnonzero(where)[0], side="right")) - 1
            raise ValueError(f"sample {micro.sample_ids[document]}: {what}")
