"""Who plays: the run's mode, and what an environment turns out to be, decide which module plays its episodes.

environment          train episodes, by mode               eval episodes, in every mode
given conversations  sft: recorded_conversations           refused
several members      rl: multi_agent.play                  multi_agent.play
one agent            rl: single_agent                      single_agent
                     sft, opd: teacher.play
"""

from collections.abc import Mapping
from pathlib import Path

import structlog

from echorl_core.config import OrchestratorConfig
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.endpoints.client import EndpointClient
from echorl_orchestrator.episodes.episode_attempt import AttemptPlayer, EpisodeResources
from echorl_orchestrator.episodes.multi_agent.compatibility import incompatibilities
from echorl_orchestrator.episodes.multi_agent.play import MembersPlayer
from echorl_orchestrator.episodes.recorded_conversations import RecordedPlayer
from echorl_orchestrator.episodes.single_agent import AgentPlayer
from echorl_orchestrator.episodes.teacher.play import JudgedPlayer, TaughtPlayer
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.workers.worker import EnvironmentFacts

_log = structlog.get_logger()


class EpisodePlayers:
    """The players of a run. ``start`` it before use."""

    def __init__(
        self,
        config: OrchestratorConfig,
        resources: EpisodeResources,
        teacher_key: str | None,
        seat_keys: Mapping[str, str],
    ) -> None:
        """Keys: of the teacher, if it asks for one; of endpoints that play members, by ``key_variable``.

        Raises:
            BadInputError: the mode does not fit renderer or teacher.
        """
        self._config, self._mode, self._seat_keys = config, config.batch.mode, seat_keys
        self._evaluations = {entry.environment.name for entry in config.evals}
        self._types = {one.name: one.type for one in config.train} | {
            entry.environment.name: entry.environment.type for entry in config.evals
        }
        if self._mode == "sft" and isinstance(resources.codec, EngineRendering):
            raise BadInputError("model.renderer: 'engine' cannot tell whose a token is, and mode sft asks for it")
        if self._mode == "opd" and config.teacher is None:
            raise BadInputError("spec.algorithm.teacher: found nothing; mode opd has a teacher")
        asks = config.teacher is not None and self._mode != "rl"
        self._teacher = EndpointClient(config.teacher, teacher_key) if asks and config.teacher is not None else None
        self._alone = AgentPlayer(resources)
        self._members = MembersPlayer(resources, seat_keys)
        self._given = RecordedPlayer(resources, config.batch)
        self._with_teacher = None if self._teacher is None else self._taking_part(resources, self._teacher)

    def _taking_part(self, resources: EpisodeResources, teacher: EndpointClient) -> TaughtPlayer | JudgedPlayer:
        if self._mode == "sft":
            return TaughtPlayer(resources, teacher, self._config.batch)
        return JudgedPlayer(resources, teacher, Path(self._config.model.path))

    def incompatibilities(self, facts: Mapping[str, EnvironmentFacts]) -> list[str]:
        """What of seats, advantage, filters and curriculum does not go with the loaded environments, by name."""
        return incompatibilities(self._config, facts, self._seat_keys)

    async def start(self, facts: Mapping[str, EnvironmentFacts]) -> None:
        """Open the connection to the teacher and ask it once for what it will be asked.

        Args:
            facts: of the loaded environments, by name.

        Raises:
            BadInputError: an environment cannot be learned from in this mode; the teacher cannot do what it will be
                asked for, or cannot be reached in time.
        """
        for name, found in facts.items():
            self._check_source(name, given=found.given)
        if self._teacher is None or self._with_teacher is None:
            return
        await self._teacher.start()
        await self._with_teacher.check()
        _log.info("teacher_answers", url=self._teacher.config.url, model=self._teacher.config.model, mode=self._mode)

    def _check_source(self, name: str, *, given: bool) -> None:
        learns = self._mode == "sft" and name not in self._evaluations
        where = f"environments.{name}.type: {self._types[name]}"
        if given and not learns:
            raise BadInputError(f"{where} has given conversations, which only train environments of mode sft take")
        if not given and learns and self._teacher is None:
            raise BadInputError(f"{where} is played, and spec.algorithm.teacher.url names nobody who plays it")

    async def close(self) -> None:
        """Close the connections to the teacher and to endpoints."""
        if self._teacher is not None:
            await self._teacher.close()
        await self._members.close()

    def player(self, environment: str, facts: EnvironmentFacts) -> AttemptPlayer:
        """Who plays the episodes of a loaded environment, by its name."""
        if facts.given:
            return self._given
        if facts.members:
            return self._members
        if self._with_teacher is None or environment in self._evaluations:
            return self._alone
        return self._with_teacher
