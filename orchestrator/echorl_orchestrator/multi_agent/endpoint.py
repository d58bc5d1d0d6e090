"""A member played by an OpenAI-compatible chat endpoint: text alone, nothing of it trains."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx

from echorl_core.config import SamplingConfig, SeatConfig
from echorl_orchestrator.multi_agent.floor import Floor
from echorl_orchestrator.multi_agent.reasoning import read
from echorl_orchestrator.multi_agent.seats import Said
from echorl_orchestrator.types import EpisodeError, ErrorKind, Message

NO_KEYS: Mapping[str, str] = MappingProxyType({})
_TOLD_CHARACTERS = 300
_SLOWEST_S = 3600.0
"""Of one request; longer than any model takes for a turn."""


def key_of(seat: SeatConfig, keys: Mapping[str, str]) -> str | None:
    """The endpoint's key; None where it needs none.

    Args:
        seat: of the endpoint.
        keys: by environment variable.

    Raises:
        KeyError: the key is missing or empty.
    """
    if seat.key_variable is None:
        return None
    found = keys.get(seat.key_variable, "")
    if not found:
        raise KeyError(seat.key_variable)
    return found


class EndpointSeat:
    """One member of one episode."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        member: str,
        seat: SeatConfig,
        *,
        key: str | None,
        sampling: SamplingConfig,
        floor: Floor,
    ) -> None:
        self._client, self._member, self._seat, self._floor = client, member, seat, floor
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._sampling = sampling
        self._turns = 0

    async def speak(self, messages: Sequence[Message]) -> Said:
        """See ``Seat``. The endpoint's failures are of kind PROVIDER or INVALID_RESPONSE."""
        return await self._floor.speak(self._member, self._turn(messages))

    async def _turn(self, messages: Sequence[Message]) -> Said:
        choice = await self._ask(messages)
        content = choice["message"]["content"]
        reading = read(content)
        truncated = choice.get("finish_reason") == "length"

        def take() -> Said:
            self._turns += 1
            message = {"role": "assistant", "content": content}
            return Said(message, reading.public, truncated, reading.flaw, self._turns - 1)

        return await self._floor.settle(self._member, take)

    async def _ask(self, messages: Sequence[Message]) -> dict[str, Any]:
        body = {
            "model": self._seat.model,
            "messages": [{"role": one["role"], "content": one["content"]} for one in messages],
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_completion_tokens,
        }
        url = f"{(self._seat.url or '').rstrip('/')}/chat/completions"
        try:
            answer = await self._client.post(url, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise self._failed(ErrorKind.PROVIDER, f"{type(error).__name__}: {error}") from None
        if answer.status_code != httpx.codes.OK:
            busy = answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error
            kind = ErrorKind.PROVIDER if busy else ErrorKind.INVALID_RESPONSE
            raise self._failed(kind, f"HTTP {answer.status_code}: {answer.text[:_TOLD_CHARACTERS]}")
        try:
            choice: dict[str, Any] = answer.json()["choices"][0]
            usable = isinstance(choice["message"]["content"], str)
        except (ValueError, LookupError, TypeError):
            usable = False
        if not usable:
            raise self._failed(ErrorKind.INVALID_RESPONSE, "found no choices[0].message.content, accepted is a text")
        return choice

    def _failed(self, kind: ErrorKind, what: str) -> EpisodeError:
        return EpisodeError(kind, f"member {self._member}: endpoint {self._seat.url}: {what}")


class Endpoints:
    """The connections of all endpoint seats of a process."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        """Opened at its first use. Episodes have deadlines of their own."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(_SLOWEST_S), limits=httpx.Limits(max_connections=None)
            )
        return self._client

    async def close(self) -> None:
        """End all connections."""
        if self._client is not None:
            async with asyncio.timeout(5.0):
                await self._client.aclose()
