"""Admin calls to one engine: identity, health, and the steps of a weight update (docs/protocols.md, Engine).

They have a connection pool of their own, so that no number of waiting completions delays a pause or a resume.
"""

from typing import TypeVar

import aiohttp
import msgspec

from echorl_core.wire.engine import (
    Applied,
    ApplyAnswer,
    EngineIdentity,
    PauseRequest,
    StageAnswer,
    StageRequest,
    StageStatus,
)
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.engines.timing import Timing

T = TypeVar("T")


class AdminError(Exception):
    """An admin call failed: no connection, no answer in time, or an answer other than 200."""

    def __init__(self, message: str, *, status: int | None = None, refused: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None when there was no answer."""
        self.refused = refused
        """Nothing listens at the address."""


class AdminClient:
    """The admin side of the engine at one address. Every method raises AdminError and nothing else."""

    def __init__(self, session: aiohttp.ClientSession, address: str, timing: Timing) -> None:
        self._session = session
        self._address = address
        self._timing = timing

    async def identity(self, needed_s: float | None = None) -> EngineIdentity:
        """Who answers at the address.

        ``needed_s``: for how long no other engine will stand in for it; None: says nothing of that.
        """
        path = "/echorl/identity" if needed_s is None else f"/echorl/identity?needed={needed_s:.3f}"
        answer = await self._call("GET", path, seconds=self._timing.look_s)
        return self._decode("/echorl/identity", answer, EngineIdentity)

    async def health(self) -> bool:
        """Whether the engine can generate; False when it answers that it cannot."""
        try:
            await self._call("GET", "/health", seconds=self._timing.look_s)
        except AdminError as error:
            if error.status is None:
                raise
            return False
        return True

    async def metrics(self) -> str:
        """The engine's metrics in Prometheus' text format."""
        return (await self._call("GET", "/metrics", seconds=self._timing.look_s)).decode(errors="replace")

    async def stage(self, policy: PolicyAnnouncement, deadline_s: float) -> None:
        """Start fetching a version while generation goes on."""
        request = StageRequest(
            attempt=policy.attempt,
            version=policy.version,
            url=policy.url,
            digest=policy.digest,
            deadline_s=deadline_s,
            broadcast=policy.broadcast,
        )
        await self._call("POST", "/echorl/stage", request)

    async def stage_status(self, wait_s: float) -> list[StageStatus]:
        """Every worker's progress: at once when none is staging any more, else after ``wait_s`` seconds at most."""
        seconds = wait_s + self._timing.admin_s
        answer = await self._call("GET", f"/echorl/stage?wait={wait_s:.3f}", seconds=seconds)
        return self._decode("/echorl/stage", answer, StageAnswer).workers

    async def pause(self, lease_s: float) -> None:
        """Stop generation with requests kept and the KV cache cleared, or renew the lease of such a pause."""
        await self._call("POST", "/echorl/pause", PauseRequest(lease_s=lease_s))

    async def apply(self, policy: PolicyAnnouncement, seconds: float) -> list[Applied]:
        """Load what is staged. Returns what every worker holds after it."""
        answer = await self._call("POST", "/echorl/apply", policy.policy, seconds=seconds)
        return self._decode("/echorl/apply", answer, ApplyAnswer).workers

    async def resume(self) -> None:
        """Let generation go on."""
        await self._call("POST", "/echorl/resume")

    async def abort(self) -> None:
        """Drop what is staged."""
        await self._call("POST", "/echorl/abort")

    async def abort_requests(self) -> None:
        """End every request that runs on the engine."""
        await self._call("POST", "/echorl/abort_requests")

    async def complete(self, body: bytes, seconds: float) -> bytes:
        """A completion request (the probe's) outside the traffic."""
        return await self._call("POST", "/v1/completions", body, seconds=seconds)

    async def _call(
        self, method: str, path: str, body: msgspec.Struct | bytes | None = None, *, seconds: float | None = None
    ) -> bytes:
        data = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        try:
            async with self._session.request(
                method,
                f"http://{self._address}{path}",
                data=data,
                headers={} if data is None else {"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=seconds or self._timing.admin_s),
                allow_redirects=False,  # they would carry the run's token elsewhere
            ) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as error:
            raise AdminError(f"{path} at {self._address}: no answer in {seconds or self._timing.admin_s} s") from error
        except (aiohttp.ClientError, OSError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorError)
            raise AdminError(f"{path} at {self._address}: {type(error).__name__}: {error}", refused=refused) from error
        if status != 200:
            raise AdminError(f"{path} at {self._address}: HTTP {status}: {message_of(raw)}", status=status)
        return raw

    def _decode(self, path: str, raw: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise AdminError(f"{path} at {self._address}: answer cannot be read: {error}") from error


def message_of(raw: bytes) -> str:
    """The reason in an error answer (``error`` may be a text or hold a ``message``), at most 300 characters."""
    try:
        error = msgspec.json.decode(raw)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (msgspec.DecodeError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")
