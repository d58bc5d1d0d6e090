"""Who plays a member, and a gateway session that keeps to the schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from echorl_core.config import SamplingConfig
from echorl_core.names import SERVED_BASE_NAME
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import WarningSpans
from echorl_orchestrator.engines.generation import Generation, TokenGenerator
from echorl_orchestrator.episodes.multi_agent.reasoning import Reading, Reasoning
from echorl_orchestrator.episodes.multi_agent.turn_taking import TurnTaking
from echorl_orchestrator.gateway.session import Draft, GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn


@dataclass(frozen=True)
class Said:
    """One turn of a member."""

    message: dict[str, Any]
    """For the member's own history, reasoning included."""
    public: str
    """For everybody else."""
    truncated: bool
    flaw: str | None
    """See ``reasoning.Reading``."""
    number: int
    """Among this member's turns, from 0."""


class Seat(Protocol):
    """The policy or an endpoint, in the place of one member."""

    async def speak(self, messages: Sequence[Message]) -> Said:
        """Say the next thing; returns when all of the slot have.

        Raises:
            PromptTooLongError: no room for one token.
            EpisodeError: the engine or endpoint failed, a sibling did, or it is not this member's turn.
        """
        ...


class BaseGenerator:
    """A TokenGenerator over the model under the adapter, on the engines that serve both."""

    def __init__(self, generator: TokenGenerator) -> None:
        self._generator = generator

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = SERVED_BASE_NAME,
        experts_from: int | None = None,
    ) -> Generation:
        """See TokenGenerator."""
        return await self._generator.generate(
            episode=episode,
            prompt_ids=prompt_ids,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            model=model,
            experts_from=experts_from,
        )

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Nobody asks for those of a frozen seat.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("logprobs of a frozen seat")

    def release(self, episode: str) -> None:
        """See TokenGenerator."""
        self._generator.release(episode)


class MemberSession(GatewaySession):
    """A session whose turns stand in its history only together with those of the same slot.

    Whoever calls ``turn`` waits for the member's turn, the gateway's HTTP callers too.
    """

    def __init__(self, spec: SessionSpec, member: str, turn_taking: TurnTaking, reasoning: Reasoning) -> None:
        super().__init__(spec)
        self._member, self._turn_taking, self._reasoning = member, turn_taking, reasoning
        self._reading = Reading("")
        self.said: list[Said] = []

    async def turn(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        sampling: SamplingConfig | None = None,
        warnings: WarningSpans | None = None,
    ) -> Turn:
        """See ``GatewaySession``; raises EpisodeError of kind PROTOCOL as well."""
        return await self._turn_taking.speak(self._member, super().turn(messages, tools, sampling, warnings))

    async def speak(self, messages: Sequence[Message]) -> Said:
        """See ``Seat``."""
        await self.turn(messages)
        return self.said[-1]

    async def _settled(self, take: Callable[[], Turn]) -> Turn:
        return await self._turn_taking.settle(self._member, take)

    def _flaw(self, draft: Draft) -> str | None:
        self._reading = self._read(draft)
        return self._reading.flaw

    def _take(self, draft: Draft) -> Turn:
        turn = super()._take(draft)
        public, action = self._reading.public, turn.action
        self.said.append(Said(turn.message, public, action.truncated, turn.flaw, turn.number))
        return turn

    def _read(self, draft: Draft) -> Reading:
        codec, parsed = self.spec.codec, draft.parsed
        if isinstance(codec, EngineRendering):
            return self._reasoning.read(parsed.text)
        # A token is a character at least.
        opened = self._reasoning.opened_by(codec.text(draft.prompt.ids[-self._reasoning.prompt_end :]))
        found = self._reasoning.read(codec.text(draft.generation.token_ids), opened=opened)
        # The codec also knows what belongs to tool calls; where the markup is broken it may show too much.
        return found if found.flaw else Reading(self._reasoning.read(parsed.text).public)
