"""One attempt at a multi-agent episode, slot by slot, until the schedule, the environment or an error ends it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.chat.messages import MessageError, canonical_message
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.environments.contract import Action, MemberReward, Slot, Stage
from echorl_orchestrator.episode_outcome import LARGEST, StopReason
from echorl_orchestrator.episodes.episode_loop import Progress, converted
from echorl_orchestrator.episodes.multi_agent.seats import Said, Seat
from echorl_orchestrator.episodes.multi_agent.turn_taking import TurnTaking
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.workers.worker import Worker


@dataclass
class MembersProgress:
    """What is known of an attempt so far; kept when a deadline ends it."""

    members: dict[str, Progress]
    """By member: its messages, and how long the environment took after its turns."""
    stop: StopReason = StopReason.ERROR
    info: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, MemberReward] = field(default_factory=dict)
    """Of every member; empty until the end."""
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """What was said aloud: slot, member, text."""
    parse_errors: int = 0
    turns: int = 0
    phase: str = "start"
    """What is under way: start, reset, turn or step with the slot and its phase, rewards, samples."""

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.stop not in {StopReason.TERMINATED, StopReason.SCHEDULE_EXHAUSTED}


def worst(errors: Sequence[BaseException]) -> BaseException | None:
    """What ends a slot: any other error before a prompt that is too long; what only followed from it is left out."""

    def rank(error: BaseException) -> int:
        if isinstance(error, EpisodeError) and error.kind is ErrorKind.CANCELLED:
            return 2
        return 1 if isinstance(error, PromptTooLongError) else 0

    return min(errors, key=rank, default=None)


class MembersLoop:
    """Plays one attempt; the seats hold the conversations with whoever plays them."""

    def __init__(
        self,
        worker: Worker,
        key: str,
        *,
        seats: Mapping[str, Seat],
        turn_taking: TurnTaking,
        config: EnvironmentConfig,
        progress: MembersProgress,
    ) -> None:
        """``key``: of the episode in its worker."""
        self._worker, self._seats, self._turn_taking = worker, seats, turn_taking
        self._config, self._progress, self._key = config, progress, key
        self._told: dict[str, int] = dict.fromkeys(seats, 0)
        """Messages of each member when it spoke last."""

    async def play(self, task: dict[str, Any], *, seed: int, episode: str) -> None:
        """Play to the end; what happened stands in the progress.

        Raises:
            EpisodeError: environment, worker, engine or endpoint failed, a member broke the schedule, the first prompt
                is too long, or a member's reward is missing.
        """
        self._progress.phase = "reset"
        stage = await self._called("begin", task=task, seed=seed, episode_id=episode)
        if stage.terminated:
            raise EpisodeError(ErrorKind.ENV, "reset ended the episode before the first slot")
        self._progress.stop = await self._until_the_end()
        self._progress.phase = "rewards"
        self._take_rewards(await self._worker.call("rewards", episode=self._key))

    async def _until_the_end(self) -> StopReason:
        limit = self._config.max_turns
        while (slot := self._turn_taking.slot) is not None:
            if limit is not None and self._progress.turns + len(slot.members) > limit:
                return StopReason.MAX_TURNS
            self._progress.phase = f"turn {slot.id} ({slot.phase})"
            said = await self._said_in(slot)
            if said is None:
                return StopReason.PROMPT_TOO_LONG
            self._progress.phase = f"step {slot.id} ({slot.phase})"
            ended = (await self._stepped(slot, said)).terminated
            self._turn_taking.check()
            if ended:
                return StopReason.TERMINATED
        return StopReason.SCHEDULE_EXHAUSTED

    async def _said_in(self, slot: Slot) -> dict[str, Said] | None:
        """What each member of the slot says; None, and nothing is said by anybody, if one has no room left."""
        for member in slot.members:
            if len(self._messages(member)) == self._told[member]:
                raise EpisodeError(ErrorKind.ENV, f"slot {slot.id!r}: {member} was told nothing since it spoke last")
        speaking = (self._seats[member].speak(self._messages(member)) for member in slot.members)
        results = await asyncio.gather(*speaking, return_exceptions=True)
        errors = [one for one in (*results, self._turn_taking.failure) if isinstance(one, BaseException)]
        if (error := worst(errors)) is None:
            return dict(zip(slot.members, [one for one in results if isinstance(one, Said)], strict=True))
        if not isinstance(error, PromptTooLongError):
            raise error
        if not self._progress.turns:
            raise EpisodeError(ErrorKind.OVERLONG, str(error))
        return None

    async def _stepped(self, slot: Slot, said: dict[str, Said]) -> Stage:
        for member, one in said.items():
            self._messages(member).append(one.message)
            self._told[member] = len(self._messages(member))
            self._progress.transcript.append({"slot": slot.id, "member": member, "text": one.public})
            self._progress.parse_errors += one.flaw is not None
        self._progress.turns += len(said)
        actions = {member: Action(one.public, truncated=one.truncated) for member, one in said.items()}
        started = time.monotonic()
        plain = msgspec.to_builtins({"slot": slot, "actions": actions})
        stage = await self._called("advance", **plain)
        for member, one in said.items():
            self._progress.members[member].tool_s[one.number] = time.monotonic() - started
        return stage

    async def _called(self, op: str, **args: Any) -> Stage:
        stage = converted(await self._worker.call(op, episode=self._key, **args), Stage, op)
        self._progress.info.update(stage.info)
        for member, messages in stage.messages.items():
            if member not in self._seats:
                accepted = ", ".join(self._seats)
                raise EpisodeError(ErrorKind.ENV, f"{op}: messages: found {member!r}, accepted are {accepted}")
            try:
                found = [canonical_message(message, index) for index, message in enumerate(messages)]
            except MessageError as error:
                raise EpisodeError(ErrorKind.ENV, f"{op}: {member}: {error}") from None
            if any(message["role"] == "assistant" for message in found):
                raise EpisodeError(ErrorKind.ENV, f"{op}: {member}: assistant messages are its own alone")
            self._messages(member).extend(found)
        return stage

    def _messages(self, member: str) -> list[dict[str, Any]]:
        return self._progress.members[member].messages

    def _take_rewards(self, answer: Any) -> None:
        found = converted(answer, dict[str, MemberReward], "rewards")
        if set(found) != set(self._seats):
            missing = sorted(set(self._seats) - set(found)) or sorted(set(found) - set(self._seats))
            what = "no reward of" if set(self._seats) - set(found) else "a reward of somebody else:"
            raise EpisodeError(ErrorKind.ENV, f"rewards: found {what} {', '.join(missing)}; accepted is one per member")
        for member, one in found.items():
            for name, value in {"reward": one.reward, **one.metrics}.items():
                if not abs(value) <= LARGEST:
                    raise EpisodeError(
                        ErrorKind.ENV, f"{member}: {name}: found {value}, accepted is a finite number of a float32"
                    )
        self._progress.rewards = found
