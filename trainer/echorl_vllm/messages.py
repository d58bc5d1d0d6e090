"""Answers of an engine's workers to its API server (JSON); its own routes' are ``echorl_core.wire.engine``."""

import msgspec

from echorl_core.wire.engine import Applied, StageStatus


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer to every call but apply."""

    stage: StageStatus
    applied: Applied | None = None


class ApplyReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer to apply: exactly one of ``applied`` and ``error`` is set."""

    applied: Applied | None = None
    error: str | None = None
    broken: bool = False
    """The model is half replaced: the engine must end."""
