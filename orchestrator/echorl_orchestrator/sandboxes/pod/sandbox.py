"""One sandbox whose process 1 is the sandbox daemon: the client of ``images/sandbox-daemon``."""

import asyncio
import base64
import hashlib
import io
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from echorl_orchestrator.sandboxes.contract import Command, Ended, SandboxError, SandboxLoss

PATIENCE_S = 30.0
"""How long a sandbox may leave every try of a call without an answer."""
_POLL_S = 30.0
"""Of one request for a command's end; the daemon answers none later than after 60."""
_ATTEMPT_S = 90.0
_CONNECT_S = 5.0
_END_S = 120.0
"""For a command to be gone after it was killed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_CONNECTIONS = 24
"""Below what the daemon takes from one side."""
_OK, _ACCEPTED, _NOT_YET = 200, 202, 204
_UNAUTHORIZED, _NOT_FOUND, _OWN_FAULT = 401, 404, 500

LossOf = Callable[[], Awaitable[SandboxError | None]]
"""What who made the sandbox knows of its end; None: nothing."""


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def check(self) -> None:
        if self.status >= 400:
            raise OSError(str(json.loads(self.body)["error"]))


class PodSandbox:
    """See ``contract.Sandbox``. Belongs to the event loop that it was made on."""

    def __init__(
        self,
        key: str,
        address: str,
        token: str,
        gateway: str | None,
        loss: LossOf | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``address``: of the daemon, ``http://HOST:PORT``; ``loss`` is asked once it does not answer any more."""
        self.key = key
        self.gateway = gateway
        self.gone: asyncio.Future[SandboxError | None] = asyncio.get_running_loop().create_future()
        """Set once it is known that there is nothing left of it: why; None where it was destroyed."""
        self._address = address
        self._loss = loss
        self._patience_s = patience_s
        self._boot: str | None = None
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=_ATTEMPT_S, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
        )

    async def close(self) -> None:
        """Ask nothing more of it: it was destroyed."""
        if not self.gone.done():
            self.gone.set_result(None)
        await self._session.close()

    async def start(self, command: Command, key: str) -> None:
        """See the contract; ``root`` changes nothing, since a pod's sandbox has one user.

        Raises:
            OSError: it can start no further process.
        """
        asked = {
            "argv": list(command.argv),
            "environment": dict(command.environment),
            "workdir": command.workdir,
            "stdin": base64.b64encode(command.stdin).decode(),
            "root": command.root,
        }
        answer = await self._call("PUT", _command(key), data=json.dumps(asked).encode())
        answer.check()

    async def wait(self, key: str, timeout_s: float) -> Ended | None:
        """See the contract."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            answer = await self._call("GET", f"{_command(key)}/end", {"wait_s": f"{min(left, _POLL_S):.3f}"})
            if answer.status == _NOT_FOUND:
                raise KeyError(key)
            answer.check()
            if answer.status == _OK:
                return Ended(**json.loads(answer.body))
            if time.monotonic() >= deadline:
                return None

    async def output(self, key: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See the contract."""
        answer = await self._call("GET", f"{_command(key)}/output", {"offset": offset, "limit": limit})
        if answer.status == _NOT_FOUND:
            raise KeyError(key)
        answer.check()
        return answer.body

    async def kill(self, key: str) -> None:
        """See the contract."""
        deadline = time.monotonic() + _END_S
        while (answer := await self._call("DELETE", _command(key))).status == _ACCEPTED:
            if time.monotonic() > deadline:
                raise await self._lost(f"command {key} runs on {_END_S:.0f} s after it was killed")
        if answer.status == _NOT_FOUND:
            raise KeyError(key)
        answer.check()

    async def read(self, path: str, limit: int = 64 << 20) -> bytes:
        """See the contract."""
        deadline = time.monotonic() + self._patience_s
        while True:
            answer = await self._call("GET", "/files", {"path": path, "limit": limit})
            answer.check()
            if hashlib.sha256(answer.body).hexdigest() == answer.headers.get("X-Sha256"):
                return answer.body
            if time.monotonic() > deadline:
                raise OSError(f"{path}: changes while it is read")

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        """See the contract. Root and the agent are one user here."""
        query = {"path": path, "mode": f"{mode:o}", "root": json.dumps(root)}
        digest = hashlib.sha256(data).hexdigest()
        answer = await self._call("PUT", "/files", query, headers={"X-Sha256": digest}, data=data)
        answer.check()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> _Answer:
        """The answer of the daemon, of whatever status; asked again until there is one or the patience ends."""
        # What was quoted stays so: a key may hold slashes.
        address = URL(f"{self._address}{path}?{urlencode(query or {})}", encoded=True)
        failing_since: float | None = None
        pause = _FIRST_PAUSE_S
        while True:
            if self.gone.done():
                raise self._why()
            begun = time.monotonic()
            body = None if data is None else io.BytesIO(data)
            try:
                async with self._session.request(
                    method, address, headers=headers, data=body, allow_redirects=False
                ) as response:
                    answer = _Answer(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.status < _OWN_FAULT and await self._is_own(answer):
                    return answer
                problem = f"HTTP {answer.status}"
            failing_since = failing_since or begun
            if time.monotonic() - failing_since > self._patience_s:
                raise await self._lost(f"no answer within {self._patience_s:g} s: {problem}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _is_own(self, answer: _Answer) -> bool:
        """Whether it is of the daemon, and not of something between.

        Raises:
            SandboxError: it is of another sandbox's daemon, or of another life of this, which has none of its commands.
        """
        boot = answer.headers.get("X-Boot")
        if boot is None:
            return False
        self._boot = self._boot or boot
        if boot != self._boot:
            raise await self._lost("it was started again")
        if answer.status == _UNAUTHORIZED:
            raise await self._lost("another sandbox answers at its address")
        return True

    async def _lost(self, problem: str) -> SandboxError:
        error = None if self._loss is None else await self._loss()
        error = error or SandboxError(SandboxLoss.LOST, f"sandbox {self.key}: {problem}")
        if not self.gone.done():
            self.gone.set_result(error)
            await self._session.close()
        return self._why()

    def _why(self) -> SandboxError:
        why = self.gone.result()
        if why is None:
            return SandboxError(SandboxLoss.LOST, f"sandbox {self.key} was destroyed")
        return SandboxError(why.loss, why.message)


def _command(key: str) -> str:
    # As a whole: names of folders would be shortened on the way.
    return "/commands/" + quote(key, safe="").replace(".", "%2E")
