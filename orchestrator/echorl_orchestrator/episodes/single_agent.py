"""Attempts at episodes that the policy plays alone: a session, a worker, an outcome with samples."""

import asyncio
import time

from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.attempt_outcome import NOTHING, EpisodeAttempt, EpisodeRequest
from echorl_orchestrator.episodes.episode_attempt import EpisodeResources
from echorl_orchestrator.episodes.episode_loop import Progress, TextLoop, run_runner
from echorl_orchestrator.episodes.samples import Built
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import session_key
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_orchestrator.workers.pool import WorkerPool


class AgentPlayer:
    """Plays attempts at single-agent episodes. Where a teacher takes part, see ``teacher.play``."""

    def __init__(self, resources: EpisodeResources) -> None:
        self._resources = resources

    async def play(
        self, request: EpisodeRequest, pool: WorkerPool, *, evaluation: bool
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        """One attempt; see ``AttemptPlayer``."""
        session = self._resources.sessions.open(self._spec(request, evaluation=evaluation), self._session)
        progress = Progress()
        started = time.monotonic()
        try:
            error = await self._played(request, pool, session, progress)
        finally:
            # Before anything is built of it: what comes later must not change it.
            await self._resources.sessions.close(session.spec.key)
            self._resources.generator.release(request.episode)
        return await self._outcome(EpisodeAttempt(request, session, progress, time.monotonic() - started), error)

    def _session(self, spec: SessionSpec) -> GatewaySession:
        """The session that plays the agent's turns."""
        return GatewaySession(spec)

    async def _built(self, played: EpisodeAttempt) -> Built:
        """The samples of an attempt.

        Raises:
            EpisodeError: the environment's ECHO filter failed, or could not be asked.
        """
        return (await self._resources.builder.built(played))[0]

    async def _judged(self, built: Built) -> Built:
        """These samples with what others say of their tokens; here nobody does."""
        return built

    def _spec(self, request: EpisodeRequest, *, evaluation: bool) -> SessionSpec:
        environment = request.environment
        return SessionSpec(
            key=session_key(request.episode),
            episode=request.episode,
            codec=self._resources.codec,
            generator=self._resources.generator,
            sampling=environment.sampling,
            max_model_len=self._resources.max_model_len,
            max_turns=environment.max_turns,
            evaluation=evaluation,
        )

    async def _played(
        self, request: EpisodeRequest, pool: WorkerPool, session: GatewaySession, progress: Progress
    ) -> EpisodeError | None:
        """Play within the deadline; the error that ended it, if any."""
        environment = request.environment
        try:
            async with asyncio.timeout(environment.episode_timeout_s):
                worker = await pool.lease()
                try:
                    if pool.facts.runner:
                        url = self._resources.gateway_url
                        await run_runner(worker, session, environment, progress, task=request.task, gateway_url=url)
                    else:
                        loop = TextLoop(worker, session, environment, progress, session.spec.key)
                        await loop.play(request.task, seed=request.seed, episode=request.episode)
                finally:
                    pool.end_episode(worker, session.spec.key)
        except EpisodeError as error:
            return error
        except TimeoutError:
            if environment.on_timeout == "drop" or not session.facts.turns:
                return EpisodeError(
                    ErrorKind.TIMEOUT, f"not done after {environment.episode_timeout_s:g} s (episodeTimeout)"
                )
            progress.stop, progress.truncated = StopReason.TIMEOUT, True
            progress.reward = progress.reward if progress.reward is not None else 0.0
        if progress.reward is None and not pool.facts.scores_groups:
            return EpisodeError(ErrorKind.ENV, f"the episode ended ({progress.stop}) without a reward")
        return None

    async def _outcome(
        self, played: EpisodeAttempt, error: EpisodeError | None
    ) -> tuple[EpisodeOutcome, EpisodeError | None]:
        built, unattributed = NOTHING, self._resources.builder.unattributed(played)
        if error is None:
            played.progress.phase = "samples"
            try:
                built = await self._built(played)
                built = await self._judged(built)
            except EpisodeError as failure:
                error = failure
        return played.outcome(built, error, unattributed=unattributed), error
