"""Bodies of the engine's routes and of the calls between its API server and its workers (JSON)."""

from typing import Literal

import msgspec

StageState = Literal["idle", "staging", "staged", "failed"]


class PolicyId(msgspec.Struct, frozen=True, kw_only=True):
    """One published version of one attempt; body of ``POST /echorl/apply``."""

    attempt: int
    version: int
    digest: str
    """sha256 of the weight manifest's bytes, in lower-case hex."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} version {self.version} digest {self.digest[:12]}"


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /echorl/stage``."""

    attempt: int
    version: int
    url: str
    """Of the weight manifest: ``http://...`` or ``file:///...``."""
    digest: str
    deadline_s: float

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
    seconds: float = 0.0

    def is_staged(self, policy: PolicyId) -> bool:
        """Whether exactly ``policy`` is ready to be applied."""
        found = (self.state, self.attempt, self.version, self.digest)
        return found == ("staged", policy.attempt, policy.version, policy.digest)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's model holds, and how long its replacement took."""

    attempt: int
    version: int
    digest: str
    seconds: float

    @property
    def policy(self) -> PolicyId:
        """Which version this is."""
        return PolicyId(attempt=self.attempt, version=self.version, digest=self.digest)


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
