"""Plays episodes: a session at the gateway, a worker for the environment, and an outcome with samples at the end."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from aiohttp import web

from echorl_core.config import EnvironmentConfig, OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.advantage_hook import AdvantageInputs, given
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.episode_loop import Progress, TextLoop, converted, run_runner
from echorl_orchestrator.filter_hook import FilterEpisode, own_matches
from echorl_orchestrator.gateway.chat_api import ChatApi
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions, session_key
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_orchestrator.multi_agent.endpoint import NO_KEYS
from echorl_orchestrator.multi_agent.fit import unfit
from echorl_orchestrator.multi_agent.play import MembersPlayer
from echorl_orchestrator.outcomes import NOTHING, Builder, EpisodeRequest, Try
from echorl_orchestrator.process_counters import RETRIES
from echorl_orchestrator.refusals import BadInputError
from echorl_orchestrator.teaching import Teaching
from echorl_orchestrator.types import RETRIED, EpisodeError, EpisodeOutcome, ErrorKind, StopReason, TokenGenerator
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.calls import call
from echorl_orchestrator.workers.pool import WorkerPool
from echorl_orchestrator.workers.worker import WorkerSpec

_log = structlog.get_logger()
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound


class EpisodePlayer:
    """Plays episodes of all environments of a run. Made by ``build_player``."""

    def __init__(
        self,
        config: OrchestratorConfig,
        identity: RunIdentity,
        generator: TokenGenerator,
        codec: ChatCodec | EngineRendering,
        teacher_key: str | None = None,
        *,
        seat_keys: Mapping[str, str] = NO_KEYS,
    ) -> None:
        self._config = config
        self._generator = generator
        self._codec = codec
        self._teaching = Teaching(config, codec, teacher_key)
        self._sessions = Sessions()
        self._background = Background()
        self._api = ChatApi(self._sessions, self._background.fail)
        self._evaluations = {entry.environment.name for entry in config.evals}
        environments = [*config.train, *(entry.environment for entry in config.evals)]
        names = [environment.name for environment in environments]
        if len(set(names)) != len(names):
            raise BadInputError(f"environments: names must be unique, found {', '.join(names)}")
        self._pools = {
            environment.name: WorkerPool(
                WorkerSpec(
                    environment,
                    config.python_path,
                    identity.attempt,
                    advantage=config.batch.of(environment).advantage.hook,
                    filters=[rule.hook for rule in config.batch.of(environment).filters],
                ),
                self._background,
            )
            for environment in environments
        }
        self._builder = Builder(config.batch.max_branches, attributed=codec.attributed, call=self._call)
        self._members = MembersPlayer(
            self._sessions, generator, codec, max_model_len=config.model.max_model_len, builder=self._builder
        )
        self._members.keys = seat_keys
        host = "127.0.0.1" if config.host in _ANY_ADDRESS else config.host
        self._gateway_url = f"http://{host}:{config.port}"

    async def start(self) -> None:
        """Start the workers of all environments.

        Raises:
            BadInputError: environments that cannot be loaded, all of them in one message; one that does not fit the
                mode; a teacher that cannot do what it will be asked for.
            WorkerStartError: a worker did not start.
        """
        results = await asyncio.gather(*(pool.start() for pool in self._pools.values()), return_exceptions=True)
        refused = [str(error) for error in results if isinstance(error, BadInputError)]
        refused += (
            [] if refused else unfit(self._config, lambda name: self._pools[name].facts.members, self._members.keys)
        )
        if refused:
            raise BadInputError("\n".join(refused))
        for error in results:
            if isinstance(error, BaseException):
                raise error
        for name, pool in self._pools.items():
            self._teaching.check_source(name, given=pool.facts.given)
        await self._teaching.start()

    async def close(self) -> None:
        """End all sessions and workers."""
        await self._teaching.close()
        await self._background.close()
        await self._members.close()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def run_forever(self) -> None:
        """Wait until cancelled; raises what a background task failed with."""
        await self._background.watch()

    def routes(self, app: web.Application) -> None:
        """Add the gateway's chat routes."""
        self._api.routes(app)

    def pool(self, environment: str) -> WorkerPool:
        """The workers of an environment, by its name."""
        return self._pools[environment]

    @property
    def open_sessions(self) -> int:
        """Conversations that are being played: one for each episode, or for each of its members."""
        return len(self._sessions)

    @property
    def session_keys(self) -> list[str]:
        """Of these."""
        return self._sessions.keys

    async def num_tasks(self, environment: EnvironmentConfig) -> int:
        """How many tasks the environment has on its side of the holdout."""
        return self._pools[environment.name].facts.num_tasks

    async def task(self, environment: EnvironmentConfig, index: int) -> dict[str, Any]:
        """Task ``index``.

        Raises:
            EpisodeError: the task source raised, or its worker died or hung.
        """
        return converted(await self._call(environment, "task", index=index), dict[str, Any], "task")

    async def score_group(
        self, environment: EnvironmentConfig, task: dict[str, Any], outcomes: list[EpisodeOutcome]
    ) -> list[float] | None:
        """Rewards of a whole group, one for each outcome; None where episodes are scored one by one.

        Raises:
            EpisodeError: scoring raised, hung, or returned anything but a finite number for each; the group falls.
        """
        if not self._pools[environment.name].facts.scores_groups:
            return None
        fields = ("episode", "reward", "metrics", "info", "messages", "truncated")
        episodes = [{name: getattr(outcome, name) for name in fields} for outcome in outcomes]
        rewards = converted(
            await self._call(environment, "score_group", task=task, episodes=episodes), list[float], "score_group"
        )
        if len(rewards) != len(outcomes):
            raise EpisodeError(ErrorKind.ENV, f"score_group: found {len(rewards)} rewards for {len(outcomes)} episodes")
        for reward in rewards:
            Progress().score(reward, {}, {})
        return rewards

    async def advantages(self, environment: EnvironmentConfig, inputs: AdvantageInputs) -> list[float]:
        """What the user's own function says of a group, one for each of its episodes.

        Raises:
            BadInputError: it raised, hung, or returned anything but a finite number for each.
            EpisodeError: SANDBOX: the worker died under it, again and again.
        """
        found = await self._asked(environment, "advantages", inputs=inputs)
        return given(found, inputs, self._config.batch.of(environment).advantage)

    async def matches(
        self, environment: EnvironmentConfig, index: int, episodes: Sequence[FilterEpisode]
    ) -> list[bool]:
        """Which episodes match the user's own filter, the rule ``index``; raises as ``advantages`` does."""
        hook = self._config.batch.of(environment).filters[index].hook
        assert hook is not None  # noqa: S101 - only custom rules are asked about
        found = await self._asked(environment, "matches", index=index, asked=list(episodes))
        return own_matches(found, index, hook)

    async def play(
        self, environment: EnvironmentConfig, task: dict[str, Any], *, episode: str, group: str, seed: int, attempt: int
    ) -> EpisodeOutcome:
        """Play one episode to its outcome; failures of infrastructure are tried again up to ``max_retries``.

        Never raises EpisodeError. Cancelling it aborts what runs on the engines and in the worker.

        Args:
            environment: one of the run's.
            task: as ``task`` gave it.
            episode: unique within the run.
            group: whose baseline it shares.
            seed: for the environment's reset; the same in every try.
            attempt: of the run, for the samples.
        """
        request = EpisodeRequest(environment, task, episode, group, seed, attempt)
        if self._pools[environment.name].facts.given:
            return self._teaching.given(request)
        tries = 1
        while True:
            outcome, error = await self._try(request)
            if outcome.error_kind not in RETRIED or tries > environment.max_retries:
                break
            tries += 1
            RETRIES.labels(environment.name, str(outcome.error_kind)).inc()
        if error is not None:
            about = {"episode": episode, "environment": environment.name, "kind": str(error.kind), "tries": tries}
            _log.warning("episode_failed", error=error.message, trace="".join(getattr(error, "__notes__", [])), **about)
        return outcome

    async def _call(self, environment: EnvironmentConfig, op: str, **args: Any) -> Any:
        return await call(self._pools[environment.name], op, **args)

    async def _asked(self, environment: EnvironmentConfig, op: str, **args: Any) -> Any:
        """What a user's own function answers; one that hangs, or whose answer does not come through, has a problem."""
        try:
            return await self._call(environment, op, **args)
        except EpisodeError as error:
            if error.kind is ErrorKind.SANDBOX:
                raise
            return {"problem": error.message}

    def _open(self, request: EpisodeRequest) -> GatewaySession:
        environment = request.environment
        return self._sessions.open(
            SessionSpec(
                key=session_key(request.episode),
                episode=request.episode,
                codec=self._codec,
                generator=self._generator,
                sampling=environment.sampling,
                max_model_len=self._config.model.max_model_len,
                max_turns=environment.max_turns,
                evaluation=environment.name in self._evaluations,
            ),
            self._teaching.maker(environment.name),
        )

    async def _try(self, request: EpisodeRequest) -> tuple[EpisodeOutcome, EpisodeError | None]:
        name = request.environment.name
        if (pool := self._pools[name]).facts.members:
            return await self._members.play(request, pool, evaluation=name in self._evaluations)
        session = self._open(request)
        progress = Progress()
        started = time.monotonic()
        try:
            error = await self._play(request, session, progress)
        finally:
            # Before anything is built of it: what comes later must not change it.
            await self._sessions.close(session.spec.key)
            self._generator.release(request.episode)
        return await self._outcome(Try(request, session, progress, time.monotonic() - started), error)

    async def _play(self, request: EpisodeRequest, session: GatewaySession, progress: Progress) -> EpisodeError | None:
        """Play one try within its deadline; the error that ended it, if any."""
        environment = request.environment
        pool = self._pools[environment.name]
        try:
            async with asyncio.timeout(environment.episode_timeout_s):
                worker = await pool.lease()
                try:
                    if pool.facts.runner:
                        await run_runner(
                            worker, session, environment, progress, task=request.task, gateway_url=self._gateway_url
                        )
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

    async def _outcome(self, played: Try, error: EpisodeError | None) -> tuple[EpisodeOutcome, EpisodeError | None]:
        built, unattributed = NOTHING, self._builder.unattributed(played)
        if error is None:
            try:
                built = self._teaching.taught(played) or (await self._builder.built(played))[0]
                built = await self._teaching.judged(built, played.request.environment.name)
            except EpisodeError as failure:
                error = failure
        return played.outcome(built, error, unattributed=unattributed), error


def build_player(
    config: OrchestratorConfig,
    identity: RunIdentity,
    generator: TokenGenerator,
    teacher_key: str | None = None,
    *,
    seat_keys: Mapping[str, str] = NO_KEYS,
) -> EpisodePlayer:
    """The player of a run; ``start`` it before use.

    Args:
        config: of the run.
        identity: of the attempt.
        generator: where tokens come from.
        teacher_key: of the teacher, if it asks for one.
        seat_keys: of endpoints that play members, by ``key_variable``.

    Raises:
        BadInputError: the model's renderer or tokenizer cannot be used, or does not fit the mode.
    """
    return EpisodePlayer(config, identity, generator, build_codec(config.model), teacher_key, seat_keys=seat_keys)
