"""The connection to engines: a body goes out, an answer comes whole or as server-sent events."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from echorl_core import names
from echorl_orchestrator.engines.answers import BrokenStreamError, invalid

_STREAM = "text/event-stream"


class Answer(msgspec.Struct, frozen=True):
    """An engine's answer with what its middleware stamped on it."""

    status: int
    body: bytes
    boot_id: str | None
    version: int | None


class GenerationClient:
    """Sends requests for tokens. Cancelling a call closes its connection, which aborts the request on the engine."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, address: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """POST ``body`` to the engine at ``address``; any HTTP status is an Answer.

        Raises:
            EpisodeError: PROVIDER when the connection fails or the answer does not come in time.
        """
        async with self._posted(address, path, body, headers) as response:
            return _answer(response, await response.read())

    async def stream(
        self,
        address: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        *,
        begins: Callable[[Answer], None],
        event: Callable[[bytes], None],
    ) -> Answer:
        """POST ``body`` and hand out the answer as it comes: its head to ``begins``, each event's data to ``event``.

        What they raise ends the request. Any HTTP status is an Answer; only one that is 200 is handed out, and comes
        without a body.

        Raises:
            EpisodeError: PROVIDER when the connection fails, or the answer is not through in time; INVALID_RESPONSE
                when it is no stream.
        """
        async with self._posted(address, path, body, headers) as response:
            if response.status != 200:
                return _answer(response, await response.read())
            kind = response.headers.get("Content-Type", "none")
            if not kind.startswith(_STREAM):
                raise invalid(f"content type: found {kind}, accepted is {_STREAM}")
            answer = _answer(response, b"")
            begins(answer)
            parts, content = list[bytes](), response.content
            while not content.at_eof():
                # vLLM writes an event's data into one line, which with a token's experts has megabytes, so parts of one
                # are joined once. A search for one byte costs a tenth of one for two.
                first, *others = (await content.readany()).split(b"\n")
                parts.append(first)
                if not others:
                    continue
                lines = [b"".join(parts), *others[:-1]]
                parts = [others[-1]]
                for line in lines:
                    # Comments and other fields say nothing to us.
                    if line.startswith(b"data:"):
                        event(line[5:].strip())
            return answer

    @asynccontextmanager
    async def _posted(
        self, address: str, path: str, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.post(
                f"http://{address}{path}",
                data=body,
                headers={"Content-Type": "application/json", **headers},
                allow_redirects=False,
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            message = f"engine {address}: {type(error).__name__}: {error}"
            raise BrokenStreamError(message) from error


def _answer(response: aiohttp.ClientResponse, body: bytes) -> Answer:
    version = response.headers.get(names.HEADER_VERSION, "")
    return Answer(
        status=response.status,
        body=body,
        boot_id=response.headers.get(names.HEADER_BOOT),
        version=int(version) if version.isdigit() else None,
    )
