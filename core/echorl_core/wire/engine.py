"""Bodies of an engine's own routes, ``/echorl/*``: what the orchestrator asks, and what the engine answers (JSON)."""

from typing import Literal

import msgspec

from echorl_core.wire.weights import PolicyId

StageState = Literal["idle", "staging", "staged", "failed"]
DeltaUse = Literal["none", "used", "no_base", "refused"]
"""What became of a version's delta: it has none; used; its base is not on the host; it was no good, see the log."""


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /echorl/stage``."""

    attempt: int
    version: int
    url: str
    """Address of the weight manifest: ``http://...`` or ``file:///...``."""
    digest: str
    deadline_s: float
    broadcast: bool = False
    """Whether the trainer broadcasts it, too, to workers that ask for that; the others fetch it."""

    @property
    def policy(self) -> PolicyId:
        """Which version this is."""
        return PolicyId(attempt=self.attempt, version=self.version, digest=self.digest)


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /echorl/pause``."""

    lease_s: float


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker has staged."""

    state: StageState = "idle"
    attempt: int | None = None
    version: int | None = None
    digest: str | None = None
    error: str | None = None
    bytes: int = 0
    """Of the whole version."""
    received_bytes: int = 0
    """Of weights that this worker fetched: 0 where another one of the host did."""
    delta: DeltaUse = "none"
    broadcast: bool = False
    """Whether it came by broadcast."""
    seconds: float = 0.0
    in_place: bool = False
    """Whether it can be applied between two steps, without a pause."""

    def is_staged(self, policy: PolicyId) -> bool:
        """Whether exactly ``policy`` is ready to be applied."""
        stage = (self.state, self.attempt, self.version, self.digest)
        return stage == ("staged", policy.attempt, policy.version, policy.digest)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's model holds, and how long its replacement took."""

    attempt: int
    version: int
    digest: str
    seconds: float = 0.0

    @property
    def policy(self) -> PolicyId:
        """Which version this is."""
        return PolicyId(attempt=self.attempt, version=self.version, digest=self.digest)


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /echorl/identity``, and of a pause and a resume: what an engine is and what it holds."""

    boot_id: str
    """Drawn anew at each start of the engine's API server."""
    run_uid: str
    attempt: int | None = None
    """Null, like version and digest, until the first apply after the engine's start."""
    version: int | None = None
    digest: str | None = None
    ready: bool = False
    """Whether it may generate."""
    paused: bool = False
    lease_s: float | None = None
    """Seconds until a pause ends by itself; null while there is none."""
    running: int = 0
    """Generation requests in flight."""
    noticed: bool = False
    """It was given notice, and ends within its grace period."""
    draining: bool = False
    """After it, it takes no more requests, as long as others stand in for it."""

    @property
    def policy(self) -> PolicyId | None:
        """The version that it holds."""
        if self.attempt is None or self.version is None or self.digest is None:
            return None
        return PolicyId(attempt=self.attempt, version=self.version, digest=self.digest)


class StageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of every call about staging."""

    workers: list[StageStatus]


class ApplyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``POST /echorl/apply``."""

    workers: list[Applied]
