"""What trainer ranks report to the orchestrator: steps, the files of a checkpoint, restarts in place, and notices."""

from typing import Literal

import msgspec


class LogprobGap(msgspec.Struct, frozen=True, kw_only=True):
    """Engine against trainer logprobs over tokens that both computed under the same version."""

    tokens: int
    max_abs: float | None
    """None when no token was compared."""
    mean_abs: float | None
    over_tolerance: int
    """Tokens with ``|difference| > 1e-4 * max(1, |logprob|)``."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 says after an optimizer step; values are already reduced over ranks."""

    attempt: int
    step: int
    metrics: dict[str, float | None]
    """Scalars by name, e.g. ``loss/rl``, ``loss/ce``, ``env_nll/all``, ``entropy/all``, ``optim/grad_norm``."""
    gap: LogprobGap
    trained_tokens: int
    """Tokens with a non-zero weight in any component, all ranks."""
    packed_tokens: int
    """Tokens that went through the model, all ranks."""
    seconds: dict[str, float]
    """Wall seconds by part: ``wait_batch``, ``forward_backward``, ``optimizer``, ``publish`` and ``step``."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint; ``file`` is relative to the checkpoint's folder."""

    role: str
    rank: int
    file: str
    size: int
    sha256: str


class PartsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint files that one rank has written and synced; repeated until acknowledged."""

    attempt: int
    step: int
    rank: int
    parts: list[Part]
    error: str | None = None
    """Why this rank could not save; the checkpoint is then not committed."""


class PartsReply(msgspec.Struct, frozen=True, kw_only=True):
    """``state``: waiting for other parts, committed, or abandoned (no manifest will be written)."""

    state: Literal["waiting", "committed", "abandoned"]


class RestartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The gang was started again in its attempt, and goes on from copies in memory; said before it does anything."""

    attempt: int
    step: int
    """That all of its ranks hold."""
    count: int
    """How many times that has happened in this attempt."""
    reason: str
    """Why, for people."""
    replacements: int = 0
    """In how many of these another pod has taken the place of a lost one."""


class RestartReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the gang must know to go on."""

    checkpoint: Literal["waiting", "committed", "abandoned"]
    """Of the report's step. Whatever parts of a waiting one were reported before are forgotten."""


class NoticeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rank was told to end. What is decided holds for its gang."""

    attempt: int
    rank: int
    within_s: float
    """Seconds that are left until it has to have saved."""
    save_s: float
    """How long its last save took, until it was acknowledged; 0: none was measured."""


class NoticeReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the gang does."""

    step: int | None
    """The step after which every rank saves and ends; None: that would come too late, so all end at once."""
    why: str
    """The decision in one clause, for people."""
