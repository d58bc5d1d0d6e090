"""The provider ``pod``: a broker makes the pods, the daemon in each takes commands. Nothing here knows Kubernetes."""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from echorl_core.wire.sandboxes import Keys, Limits, Pending, Ready, Refusal, Wanted, decoded
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLimits, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.pod.sandbox import PATIENCE_S, PodSandbox

_WAIT_S = 30.0
"""That one request may take to see a sandbox become ready."""
_ANSWER_S = 30.0
"""Beyond that, and for all others: until the broker must have answered."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_PLAIN = re.compile(r"[-._A-Za-z0-9]{1,40}")
_READY, _PENDING, _TRY_AGAIN = 200, 202, 500


@dataclass(frozen=True)
class Access:
    """Who asks a broker: one run."""

    url: str
    """Base URL of what the broker has of the run."""
    run_uid: str
    key: str = field(repr=False)
    """The run's ``sandboxes_key``."""
    owner: str = field(default_factory=lambda: secrets.token_hex(4))
    """The process that asks: 8 letters or digits."""


@dataclass(frozen=True)
class Patience:
    """How long a provider goes on asking, in seconds."""

    room_s: float = 900.0
    """For a sandbox to be ready, with all waiting for room and nodes."""
    broker_s: float = 60.0
    """For a broker that does not answer."""
    daemon_s: float = PATIENCE_S
    """For a sandbox that does not answer."""


OnWait = Callable[[str, Pending], None]


class PodSandboxes:
    """See ``contract.Sandboxes``. Belongs to one event loop; ``close`` ends what was forgotten."""

    def __init__(self, access: Access, patience: Patience | None = None, on_wait: OnWait = lambda *_: None) -> None:
        """``on_wait`` gets the key of a sandbox that is still not there, each time that the broker says so."""
        self._access, self._patience, self._on_wait = access, patience or Patience(), on_wait
        self._prefix = secrets.token_hex(6)
        """Episodes of one run choose the same keys."""
        self._made: dict[str, asyncio.Task[PodSandbox]] = {}
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {access.key}"},
            timeout=aiohttp.ClientTimeout(total=_WAIT_S + _ANSWER_S, sock_connect=_ANSWER_S),
        )

    async def check(self) -> None:
        """Ask for nothing.

        Raises:
            SandboxError: the broker does not answer, or does not know this run.
        """
        status, body = await self._call("GET", "")
        if status != _READY:
            raise _refused("sandboxes", status, body)
        decoded(body, Keys)

    async def create(self, spec: SandboxSpec, key: str) -> PodSandbox:
        """See the contract."""
        making = self._made.get(key)
        if making is None:
            making = self._made[key] = asyncio.create_task(self._make(spec, key))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise SandboxError(SandboxLoss.LOST, f"sandbox {key} was destroyed while it was made") from None
            raise
        except SandboxError:
            self._made.pop(key, None)
            raise

    async def destroy(self, key: str) -> None:
        """See the contract.

        Raises:
            SandboxError: the broker does not answer; the sandbox ends with its time.
        """
        making = self._made.get(key)
        if making is None:
            return
        if not making.done():
            making.cancel()
        done = (await asyncio.gather(making, return_exceptions=True))[0]
        if isinstance(done, PodSandbox):
            await done.close()
        self._made.pop(key, None)
        await self._end(key)

    async def list(self) -> list[str]:
        """See the contract."""
        return [
            key
            for key, making in self._made.items()
            if making.done() and not making.cancelled() and not making.exception() and not making.result().gone.done()
        ]

    async def close(self) -> None:
        """Destroy what is left; what the broker does not hear of ends with its time."""
        await asyncio.gather(*(self.destroy(key) for key in list(self._made)), return_exceptions=True)
        await self._session.close()

    async def end_all(self) -> None:
        """Destroy every sandbox of the owner, also those of other providers.

        Raises:
            SandboxError: the broker does not answer; they end with their time.
        """
        status, body = await self._call("DELETE", f"?owner={self._access.owner}")
        if status >= 400:
            raise _refused("sandboxes", status, body)

    async def _make(self, spec: SandboxSpec, key: str) -> PodSandbox:
        limits = spec.limits or SandboxLimits()
        wanted = Wanted(
            run_uid=self._access.run_uid,
            image=spec.image,
            workdir=spec.workdir,
            limits=Limits(
                cpu=limits.cpu,
                memory_bytes=limits.memory_bytes,
                disk_bytes=limits.disk_bytes,
                processes=limits.processes,
            ),
            ttl_s=spec.ttl_s,
            gateway=spec.gateway,
            volumes=dict(spec.volumes),
        )
        try:
            ready = await self._ready(wanted, key)
        except SandboxError:
            await self._end_quietly(key)
            raise
        patience_s = self._patience.daemon_s
        return PodSandbox(
            key, ready.address, ready.token, ready.gateway, lambda: self._loss(key), patience_s=patience_s
        )

    async def _ready(self, wanted: Wanted, key: str) -> Ready:
        body, until = msgspec.json.encode(wanted), time.monotonic() + self._patience.room_s
        while True:
            left = until - time.monotonic()
            path = f"/{self._named(key)}?wait_s={max(0.0, min(left, _WAIT_S)):.3f}"
            status, answer = await self._call("PUT", path, body)
            if status == _READY:
                return decoded(answer, Ready)
            if status != _PENDING:
                raise _refused(f"sandbox {key}", status, answer)
            pending = decoded(answer, Pending)
            if time.monotonic() >= until:
                words = f"sandbox {key}: not ready after {self._patience.room_s:g} s: {pending.reason}"
                raise SandboxError(SandboxLoss.REFUSED, words)
            self._on_wait(key, pending)

    async def _loss(self, key: str) -> SandboxError | None:
        """What the broker knows of the end of a sandbox that does not answer."""
        try:
            status, body = await self._call("GET", f"/{self._named(key)}")
        except SandboxError:
            return None
        return None if status in {_READY, _PENDING} else _refused(f"sandbox {key}", status, body)

    async def _end(self, key: str) -> None:
        status, body = await self._call("DELETE", f"/{self._named(key)}")
        if status >= 400:
            raise _refused(f"sandbox {key}", status, body)

    async def _end_quietly(self, key: str) -> None:
        try:
            await self._end(key)
        except SandboxError:
            return

    def _named(self, key: str) -> str:
        """A key as the broker has it: of this episode, and of letters that it takes."""
        plain = key if _PLAIN.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:32]
        return f"{self._access.owner}-{self._prefix}.{plain}"

    async def _call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of an answer; asked again while there is none, as every call may be.

        Raises:
            SandboxError: there was none within the patience.
        """
        until, pause = time.monotonic() + self._patience.broker_s, _FIRST_PAUSE_S
        while True:
            try:
                url = f"{self._access.url}/sandboxes{path}"
                async with self._session.request(method, url, data=body, allow_redirects=False) as response:
                    answer = response.status, await response.read()
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer[0] < _TRY_AGAIN:
                    return answer
                problem = _refused("", *answer).message
            if time.monotonic() > until:
                words = f"the broker of sandboxes does not answer: {problem}"
                raise SandboxError(SandboxLoss.REFUSED, words)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _refused(what: str, status: int, body: bytes) -> SandboxError:
    try:
        refusal = decoded(body, Refusal)
    except msgspec.MsgspecError:
        return SandboxError(SandboxLoss.REFUSED, f"{what}: the broker answers {status}: {body[:200]!r}")
    return SandboxError(SandboxLoss(refusal.loss), f"{what}: {refusal.message}")
