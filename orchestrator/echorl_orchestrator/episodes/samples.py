"""From a session's branches to samples: every array filled, every shared token weighted once."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from echorl_core.config import EchoConfig
from echorl_core.wire.batch import MessageRole, Sample, TokenRole
from echorl_orchestrator.episodes.echo import select
from echorl_orchestrator.gateway.history import Branch
from echorl_orchestrator.gateway.tokens import Columns

_ENVIRONMENT_ROLES = (MessageRole.SYSTEM, MessageRole.USER, MessageRole.TOOL)


@dataclass(frozen=True)
class Owner:
    """Whose samples they are."""

    episode: str
    group: str
    environment: str
    task_key: int | str
    attempt: int


@dataclass(frozen=True)
class Built:
    """The samples of one episode."""

    samples: list[Sample]
    dropped_branches: int
    """Over ``maxBranches``."""
    kept_tokens: int
    """Sampled tokens that stand as actions in the samples, shared ones counted once."""
    version_low: int
    version_high: int
    unused_branches: int = 0
    """Left out since none of their turns is used; see ``branch_verdicts``."""


def used_branches(branches: Sequence[Branch], unused: Collection[int]) -> list[Branch]:
    """Those that end with a used turn, and those that hold tokens of one which none of these holds."""
    if not unused:
        return list(branches)
    of_used_turns = {branch.number: _sampled_in_used_turns(branch.columns(), unused) for branch in branches}
    ending = {branch.number for branch in branches if int(branch.columns().turn.max()) not in unused}
    told = np.concatenate([np.zeros(0, np.int64), *(of_used_turns[number] for number in ending)])
    return [
        branch
        for branch in branches
        if branch.number in ending or not np.isin(of_used_turns[branch.number], told).all()
    ]


def _sampled_in_used_turns(columns: Columns, unused: Collection[int]) -> NDArray[np.int64]:
    origins: NDArray[np.int64] = columns.origin[(columns.turn >= 0) & ~np.isin(columns.turn, list(unused))]
    return origins


def kept_branches(branches: Sequence[Branch], max_branches: int) -> list[Branch]:
    """All branches, or the first ``max_branches - 1`` and the last one."""
    if len(branches) <= max_branches:
        return list(branches)
    return [*branches[: max_branches - 1], branches[-1]]


def provenance(columns: Columns) -> NDArray[np.uint8]:
    """TokenRole of each token.

    A turn without usable logprobs stays context: nothing may take its tokens for trainable actions.
    """
    sampled = columns.turn >= 0
    started = np.logical_or.accumulate(sampled) & ~sampled
    observed = started & columns.body & np.isin(columns.message_role, _ENVIRONMENT_ROLES)
    role = np.full(len(columns), TokenRole.CONTEXT, np.uint8)
    role[observed] = TokenRole.ENV_OUTPUT
    role[observed & columns.warning] = TokenRole.WARNING
    role[columns.usable] = TokenRole.ACTION
    return role


def sample_of(columns: Columns, branch: int, owner: Owner, tool_names: list[str], reward: float | None) -> Sample:
    """The tokens of a branch as a sample: ``rl_weight`` 1 on actions, no ``ce_weight``."""
    role = provenance(columns)
    action = role == TokenRole.ACTION
    zeros = np.zeros(len(columns), np.float32)
    return Sample(
        episode=owner.episode,
        branch=branch,
        group=owner.group,
        environment=owner.environment,
        task_key=owner.task_key,
        attempt=owner.attempt,
        reward=reward,
        token_ids=columns.ids,
        role=role,
        message_role=columns.message_role,
        scaffold=(~columns.body).astype(np.uint8),
        tool=columns.tool,
        tool_names=tool_names,
        logprobs=columns.logprobs,
        version_low=np.where(action, columns.version_low, -1).astype(np.int32),
        version_high=np.where(action, columns.version_high, -1).astype(np.int32),
        turn=np.where(action, columns.turn, -1).astype(np.int32),
        rl_weight=action.astype(np.float32),
        ce_weight=zeros,
        advantage=zeros,
        temperature=columns.temperature,
    )


class _Once:
    """Lets each token through once."""

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.int64)

    def fresh(self, wanted: NDArray[np.bool_], origin: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The wanted tokens that no earlier call let through."""
        fresh: NDArray[np.bool_] = wanted & ~np.isin(origin, self._seen)
        self._seen = np.concatenate([self._seen, origin[fresh]])
        return fresh


def _versions(parts: Sequence[Columns]) -> tuple[int, int]:
    low = [part.version_low[part.turn >= 0] for part in parts]
    high = [part.version_high[part.turn >= 0] for part in parts]
    if not any(len(values) for values in low):
        return 0, 0
    return int(np.concatenate(low).min()), int(np.concatenate(high).max())


def build_samples(
    branches: Sequence[Branch],
    tool_names: list[str],
    owner: Owner,
    *,
    reward: float | None,
    max_branches: int,
    echo: EchoConfig | None,
    unused: Collection[int] = (),
) -> Built:
    """One sample for each kept branch, with ``rl_weight`` 1 on actions and ECHO's ``ce_weight``.

    A token that several branches share has a weight in the first kept one that selects it, for each of both.

    Args:
        branches: of one session, in the order in which they were opened.
        tool_names: what ``tool`` of a token indexes.
        owner: identity of the samples.
        reward: of the episode; all its samples carry it.
        max_branches: at most so many samples.
        echo: None where the environment has no ECHO, or the codec attributes nothing.
        unused: turns that do not train: context where a branch is kept for others.
    """
    used = used_branches(branches, unused)
    kept = kept_branches(used, max_branches)
    parts = [_without(branch.columns(), unused) for branch in kept]
    acted, echoed = _Once(), _Once()
    samples: list[Sample] = []
    kept_tokens = 0
    for branch, columns in zip(kept, parts, strict=True):
        sample = sample_of(columns, branch.number, owner, list(tool_names), reward)
        if (experts := branch.routed.whole()) is not None:
            sample = msgspec.structs.replace(sample, experts=experts.ravel(), routed_tokens=len(experts))
        first = acted.fresh(sample.role == TokenRole.ACTION, columns.origin)
        first[:1] = False
        kept_tokens += int(np.count_nonzero(first))
        sample = msgspec.structs.replace(sample, rl_weight=first.astype(np.float32))
        if echo is not None:
            chosen = select(sample, echo)
            mask = echoed.fresh(chosen.mask, columns.origin)
            sample = msgspec.structs.replace(
                sample,
                rl_weight=(first & ~chosen.leaves_rl).astype(np.float32),
                ce_weight=np.where(mask, chosen.ce_weight, np.float32(0)).astype(np.float32),
                ce_mask=mask,
            )
        samples.append(sample)
    low, high = _versions(parts)
    return Built(samples, len(used) - len(kept), kept_tokens, low, high, len(branches) - len(used))


def _without(columns: Columns, turns: Collection[int]) -> Columns:
    if not turns:
        return columns
    usable = columns.usable & ~np.isin(columns.turn, list(turns))
    return replace(columns, usable=usable, logprobs=np.where(usable, columns.logprobs, np.float32(0)))
