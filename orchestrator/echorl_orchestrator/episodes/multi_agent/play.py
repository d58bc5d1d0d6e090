"""Attempts at multi-agent episodes: a session for each member that the policy plays, a worker, an outcome of units."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from echorl_core.config import SeatConfig
from echorl_orchestrator.environments.contract import MemberReward, Slot
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.attempt_outcome import EpisodeAttempt, EpisodeRequest
from echorl_orchestrator.episodes.episode_attempt import EpisodeResources
from echorl_orchestrator.episodes.episode_loop import Progress
from echorl_orchestrator.episodes.multi_agent.bindings import Bindings, bind
from echorl_orchestrator.episodes.multi_agent.endpoint import Endpoints, EndpointSeat, key_of
from echorl_orchestrator.episodes.multi_agent.loop import MembersLoop, MembersProgress
from echorl_orchestrator.episodes.multi_agent.member_samples import Ended, owned
from echorl_orchestrator.episodes.multi_agent.reasoning import Reasoning
from echorl_orchestrator.episodes.multi_agent.seats import BaseGenerator, MemberSession, Seat
from echorl_orchestrator.episodes.multi_agent.turn_taking import TurnTaking
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import session_key
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_orchestrator.workers.pool import WorkerPool


@dataclass
class _Cast:
    """Who plays in one attempt."""

    seats: dict[str, Seat]
    sessions: dict[str, MemberSession]
    turn_taking: TurnTaking


class MembersPlayer:
    """Plays attempts at multi-agent episodes."""

    def __init__(self, resources: EpisodeResources, keys: Mapping[str, str]) -> None:
        """``keys``: of endpoints, by ``key_variable``."""
        self._resources, self._keys = resources, keys
        self._endpoints = Endpoints()

    async def close(self) -> None:
        """End connections to endpoints."""
        await self._endpoints.close()

    async def play(
        self, request: EpisodeRequest, pool: WorkerPool, *, evaluation: bool
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        """One attempt; see ``AttemptPlayer``. Of an eval, the outcome is its ``learnerSeat``'s own."""
        progress = MembersProgress({member: Progress() for member in pool.facts.members})
        try:
            bindings = bind(request.environment, pool.facts.members, request.task, evaluation=evaluation)
        except EpisodeError as failure:
            return Ended(request, {}, progress, 0.0).whole([], failure), failure
        cast = await self._cast(request, bindings, pool.facts.schedule, evaluation=evaluation)
        started = time.monotonic()
        error: EpisodeError | None
        try:
            error = await self._played(request, pool, cast, progress)
        finally:
            # Before anything is built of them: what comes later must not change it.
            for member, session in cast.sessions.items():
                await self._resources.sessions.close(session.spec.key)
                self._resources.generator.release(f"{request.episode}/{member}")
        ended = Ended(request, cast.sessions, progress, time.monotonic() - started)
        units: list[EpisodeOutcome] = []
        try:
            if error is None:
                progress.phase = "samples"
                made = [await self._unit(ended, member) for member in bindings.learners]
                # Whoever the episode ended before it spoke has nothing to learn from.
                units = made if evaluation else [unit for unit in made if unit.samples]
        except EpisodeError as failure:
            error, units = failure, []
        if evaluation and units:
            return units[0], error
        return ended.whole(units, error), error

    async def _unit(self, ended: Ended, member: str) -> EpisodeOutcome:
        request, progress = ended.request, ended.progress
        own = progress.members[member]
        own.reward, own.stop, own.truncated, own.info = (
            progress.rewards[member].reward,
            progress.stop,
            progress.truncated,
            progress.info,
        )
        named = replace(request, episode=f"{request.episode}/{member}")
        try_ = EpisodeAttempt(named, ended.sessions[member], own, ended.seconds)
        built, unattributed = await self._resources.builder.built(try_)
        return ended.unit(member, try_.outcome(owned(built, member), None, unattributed=unattributed))

    async def _played(
        self, request: EpisodeRequest, pool: WorkerPool, cast: _Cast, progress: MembersProgress
    ) -> EpisodeError | None:
        """Play within the deadline; the error that ended it, if any."""
        environment = request.environment
        try:
            async with asyncio.timeout(environment.episode_timeout_s):
                worker = await pool.lease()
                key = session_key(request.episode)
                try:
                    loop = MembersLoop(
                        worker,
                        key,
                        seats=cast.seats,
                        turn_taking=cast.turn_taking,
                        config=environment,
                        progress=progress,
                    )
                    await loop.play(request.task, seed=request.seed, episode=request.episode)
                finally:
                    pool.end_episode(worker, key)
        except EpisodeError as error:
            return error
        except TimeoutError:
            if environment.on_timeout == "drop" or not progress.turns:
                limit = f"{environment.episode_timeout_s:g} s (episodeTimeout)"
                return EpisodeError(ErrorKind.TIMEOUT, f"not done after {limit}")
            progress.stop = StopReason.TIMEOUT
            progress.rewards = {member: MemberReward(0.0) for member in pool.facts.members}
        return None

    async def _cast(
        self, request: EpisodeRequest, bindings: Bindings, schedule: Sequence[Slot], *, evaluation: bool
    ) -> _Cast:
        cast = _Cast({}, {}, TurnTaking(schedule))
        reasoning = Reasoning(request.environment.think_tags)
        for member, seat in bindings.seats.items():
            if seat.policy == "endpoint":
                client = await self._endpoints.client(seat, key_of(seat, self._keys))
                cast.seats[member] = EndpointSeat(
                    client,
                    member,
                    sampling=request.environment.sampling,
                    turn_taking=cast.turn_taking,
                    reasoning=reasoning,
                )
            else:
                spec = self._spec(request, member, seat, evaluation=evaluation)
                session = MemberSession(spec, member, cast.turn_taking, reasoning)
                self._resources.sessions.open(session.spec, partial(_made, session))
                cast.seats[member] = cast.sessions[member] = session
        return cast

    def _spec(self, request: EpisodeRequest, member: str, seat: SeatConfig, *, evaluation: bool) -> SessionSpec:
        return SessionSpec(
            key=session_key(request.episode, member),
            episode=f"{request.episode}/{member}",
            codec=self._resources.codec,
            generator=BaseGenerator(self._resources.generator) if seat.policy == "base" else self._resources.generator,
            sampling=request.environment.sampling,
            max_model_len=self._resources.max_model_len,
            evaluation=evaluation,
        )


def _made(session: MemberSession, _: SessionSpec) -> GatewaySession:
    return session
