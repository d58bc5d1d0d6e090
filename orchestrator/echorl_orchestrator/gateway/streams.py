"""An answer as server-sent events, whose client hears from us while the turn is computed."""

from aiohttp import web

SILENCE_S = 1.0
"""A stream is never silent for longer, so that neither clients nor proxies give it up during a long turn.

What is refused sooner is refused by its status, which clients know how to take.
"""


class EventStream:
    """The stream of one request. It begins with what is said first."""

    def __init__(self, request: web.Request, heartbeat: str) -> None:
        self._request, self._heartbeat = request, heartbeat
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """The status and the headers are sent."""
        return self._response is not None

    async def keep_alive(self) -> None:
        """Say that the turn is under way; to be called every ``SILENCE_S``.

        Raises:
            ConnectionError: nobody listens any more, as with ``end``.
        """
        await self._say(self._heartbeat)

    async def end(self, events: str) -> web.StreamResponse:
        """Say the last events."""
        response = await self._say(events)
        await response.write_eof()
        return response

    async def _say(self, text: str) -> web.StreamResponse:
        if self._response is None:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            self._response = web.StreamResponse(headers=headers)
            await self._response.prepare(self._request)
        await self._response.write(text.encode())
        return self._response
