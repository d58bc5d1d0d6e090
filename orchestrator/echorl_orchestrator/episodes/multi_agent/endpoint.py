"""A member played by an OpenAI-compatible chat endpoint: text alone, nothing of it trains."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from echorl_core.config import SamplingConfig, SeatConfig, TeacherConfig
from echorl_orchestrator.chat.messages import Message
from echorl_orchestrator.endpoints.chat import endpoint_says
from echorl_orchestrator.endpoints.client import EndpointClient
from echorl_orchestrator.episodes.multi_agent.reasoning import Reasoning
from echorl_orchestrator.episodes.multi_agent.seats import Said
from echorl_orchestrator.episodes.multi_agent.turn_taking import TurnTaking
from echorl_orchestrator.failures import EpisodeError, ErrorKind

NO_KEYS: Mapping[str, str] = MappingProxyType({})


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
        client: EndpointClient,
        member: str,
        *,
        sampling: SamplingConfig,
        turn_taking: TurnTaking,
        reasoning: Reasoning,
    ) -> None:
        self._client, self._member, self._sampling, self._turn_taking = client, member, sampling, turn_taking
        self._reasoning = reasoning
        self._turns = 0

    async def speak(self, messages: Sequence[Message]) -> Said:
        """See ``Seat``. The endpoint's failures are of kind PROVIDER or INVALID_RESPONSE."""
        return await self._turn_taking.speak(self._member, self._turn(messages))

    async def _turn(self, messages: Sequence[Message]) -> Said:
        asked = [{"role": one["role"], "content": one["content"]} for one in messages]
        most = self._sampling.max_completion_tokens
        said = await endpoint_says(self._client, asked, [], self._sampling, max_tokens=most)
        content = said.message["content"]
        if not isinstance(content, str):
            reason = f"{self._client.where}: found a message without text, accepted is a text"
            raise EpisodeError(ErrorKind.INVALID_RESPONSE, reason)
        reading = self._reasoning.read(content)

        def take() -> Said:
            self._turns += 1
            message = {"role": "assistant", "content": content}
            return Said(message, reading.public, said.truncated, reading.flaw, self._turns - 1)

        return await self._turn_taking.settle(self._member, take)


class Endpoints:
    """The connections of all endpoint seats of a process, one client for each server, model and key."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, str | None], EndpointClient] = {}

    async def client(self, seat: SeatConfig, key: str | None) -> EndpointClient:
        """Opened at its first use."""
        url, model = seat.url or "", seat.model or ""
        if (url, model, key) not in self._clients:
            made = EndpointClient(TeacherConfig(url=url, model=model), key, title="endpoint")
            await made.start()
            self._clients[url, model, key] = made
        return self._clients[url, model, key]

    async def close(self) -> None:
        """End all connections."""
        for client in self._clients.values():
            await client.close()
