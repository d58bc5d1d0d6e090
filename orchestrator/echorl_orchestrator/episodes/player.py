"""Plays episodes of all environments: starts their workers, repeats attempts that failed, asks users' own functions.

Who plays an attempt, and how, is the matter of ``episode_players``.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from aiohttp import web

from echorl_core.config import EnvironmentConfig, OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs, given
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.engines.generation import TokenGenerator
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.episodes.attempt_outcome import EpisodeRequest, SampleBuilder
from echorl_orchestrator.episodes.episode_attempt import EpisodeResources
from echorl_orchestrator.episodes.episode_loop import Progress, converted
from echorl_orchestrator.episodes.episode_players import EpisodePlayers
from echorl_orchestrator.episodes.multi_agent.endpoint import NO_KEYS
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind, retries
from echorl_orchestrator.filters.filter_hook import FilterEpisode, own_matches
from echorl_orchestrator.gateway.http import GatewayApi
from echorl_orchestrator.gateway.sessions import Sessions
from echorl_orchestrator.metrics.process_counters import RETRIES
from echorl_orchestrator.sandboxes.ledger import SandboxLedger
from echorl_orchestrator.sandboxes.lent import BrokerKey
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
        sandboxes_key: str | None = None,
        sandboxes: SandboxLedger | None = None,
        on_retry: Callable[[EpisodeOutcome, ErrorKind], None] = lambda outcome, kind: None,
    ) -> None:
        """``on_retry`` gets each try that failed and is tried again, and why."""
        self._config, self._on_retry = config, on_retry
        self._sessions = Sessions()
        self._background = Background()
        self._api = GatewayApi(self._sessions, self._background.fail)
        host = "127.0.0.1" if config.host in _ANY_ADDRESS else config.host
        resources = EpisodeResources(
            sessions=self._sessions,
            generator=generator,
            codec=codec,
            builder=SampleBuilder(config.batch.max_branches, attributed=codec.attributed, call=self._call),
            max_model_len=config.model.max_model_len,
            gateway_url=f"http://{host}:{config.port}",
        )
        self._players = EpisodePlayers(config, resources, teacher_key, seat_keys)
        self._evaluations = {entry.environment.name for entry in config.evals}
        environments = [*config.train, *(entry.environment for entry in config.evals)]
        names = [environment.name for environment in environments]
        if len(set(names)) != len(names):
            raise BadInputError(f"environments: names must be unique, found {', '.join(names)}")
        self._room = asyncio.Semaphore(config.sandboxes.concurrency if config.sandboxes else 1)
        """Of episodes that have sandboxes, over all environments and workers."""
        ledger = sandboxes or SandboxLedger()
        self._pools = {
            environment.name: WorkerPool(
                WorkerSpec(
                    environment,
                    config.python_path,
                    identity.attempt,
                    evaluation=environment.name in self._evaluations,
                    advantage=config.batch.of(environment).advantage.hook,
                    filters=[rule.hook for rule in config.batch.of(environment).filters],
                    sandboxes=config.sandboxes,
                    gateway=(host, config.port),
                    broker=None if sandboxes_key is None else BrokerKey(identity.uid, sandboxes_key),
                    ledger=ledger,
                ),
                self._background,
            )
            for environment in environments
        }

    async def start(self) -> None:
        """Start the workers of all environments.

        Raises:
            BadInputError: environments that cannot be loaded, all of them in one message; one that does not fit the
                mode; a teacher that cannot do what it will be asked for.
            WorkerStartError: a worker did not start.
        """
        results = await asyncio.gather(*(pool.start() for pool in self._pools.values()), return_exceptions=True)
        refused = [str(error) for error in results if isinstance(error, BadInputError)]
        facts = {name: pool.facts for name, pool in self._pools.items()}
        refused = refused or self._players.incompatibilities(facts)
        if refused:
            raise BadInputError("\n".join(refused))
        for error in results:
            if isinstance(error, BaseException):
                raise error
        await self._players.start(facts)

    async def close(self) -> None:
        """End all sessions and workers."""
        await self._players.close()
        await self._background.close()
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
        """The keys of open sessions."""
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

    def room(self, environment: EnvironmentConfig) -> AbstractAsyncContextManager[object]:
        """Room among the episodes that have sandboxes; others need none."""
        return self._room if self._pools[environment.name].facts.sandboxes else contextlib.nullcontext()

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
            seed: for the environment's reset; the same in every attempt.
            attempt: of the run, for the samples.
        """
        request = EpisodeRequest(environment, task, episode, group, seed, attempt)
        name, pool = environment.name, self._pools[environment.name]
        player = self._players.player(name, pool.facts)
        attempts = 1
        while True:
            outcome, error = await player.play(request, pool, evaluation=name in self._evaluations)
            if attempts > retries(outcome.error_kind, environment.max_retries):
                break
            assert outcome.error_kind is not None  # noqa: S101 - nothing else is tried again
            attempts += 1
            self._on_retry(outcome, outcome.error_kind)
            RETRIES.labels(name, str(outcome.error_kind)).inc()
        if error is not None:
            about = {"episode": episode, "environment": name, "kind": str(error.kind), "tries": attempts}
            about |= {"phase": outcome.phase}
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


def build_player(
    config: OrchestratorConfig,
    identity: RunIdentity,
    generator: TokenGenerator,
    teacher_key: str | None = None,
    *,
    seat_keys: Mapping[str, str] = NO_KEYS,
    sandboxes_key: str | None = None,
    sandboxes: SandboxLedger | None = None,
    on_retry: Callable[[EpisodeOutcome, ErrorKind], None] = lambda outcome, kind: None,
) -> EpisodePlayer:
    """The player of a run; ``start`` it before use.

    Args:
        config: of the run.
        identity: of the attempt.
        generator: where tokens come from.
        teacher_key: of the teacher, if it asks for one.
        seat_keys: of endpoints that play members, by ``key_variable``.
        sandboxes_key: what sandboxes in pods are asked for with, if there are to be any.
        sandboxes: is told what becomes of sandboxes.
        on_retry: gets each try that failed and is tried again, and why.

    Raises:
        BadInputError: the model's renderer or tokenizer cannot be used, or does not fit the mode.
    """
    codec = build_codec(config.model)
    return EpisodePlayer(
        config,
        identity,
        generator,
        codec,
        teacher_key,
        seat_keys=seat_keys,
        sandboxes_key=sandboxes_key,
        sandboxes=sandboxes,
        on_retry=on_retry,
    )
