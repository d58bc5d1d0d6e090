"""What trainer ranks report to the orchestrator: steps, and the files of a checkpoint."""

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
