"""What the modes sft and opd add to how train episodes are played: given conversations, a teacher that plays or judges.

sft   given     tasks are conversations; nothing is played
sft   played    a teacher takes the policy's turns
opd             the policy plays, and a teacher's logprobs of its tokens go with the samples
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from echorl_core.config import OrchestratorConfig
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_orchestrator.given import given_outcome
from echorl_orchestrator.outcomes import EpisodeRequest, Try
from echorl_orchestrator.refusals import BadInputError
from echorl_orchestrator.samples import Built
from echorl_orchestrator.teacher.chat import check_speaks
from echorl_orchestrator.teacher.client import TeacherClient
from echorl_orchestrator.teacher.logprobs import check_judges, judged
from echorl_orchestrator.teacher.session import TeacherSession
from echorl_orchestrator.types import EpisodeOutcome

_log = structlog.get_logger()


class Teaching:
    """The mode of a run, and its teacher. ``start`` it before use; in mode rl it adds nothing."""

    def __init__(
        self,
        config: OrchestratorConfig,
        codec: ChatCodec | EngineRendering,
        key: str | None = None,
    ) -> None:
        """``key``: of the teacher, if it asks for one.

        Raises:
            BadInputError: the mode does not fit renderer or teacher.
        """
        self._config, self._codec = config, codec
        self._mode = config.batch.mode
        self._evaluations = {entry.environment.name for entry in config.evals}
        self._types = {one.name: one.type for one in config.train} | {
            entry.environment.name: entry.environment.type for entry in config.evals
        }
        if self._mode == "sft" and isinstance(codec, EngineRendering):
            raise BadInputError("model.renderer: 'engine' cannot tell whose a token is, and mode sft asks for it")
        if self._mode == "opd" and config.teacher is None:
            raise BadInputError("spec.algorithm.teacher: found nothing; mode opd has a teacher")
        asks = config.teacher is not None and self._mode != "rl"
        self._teacher = TeacherClient(config.teacher, key) if asks and config.teacher is not None else None

    async def start(self) -> None:
        """Open the connection to the teacher and ask it once for what it will be asked.

        Raises:
            BadInputError: it cannot do that, or cannot be reached in time.
        """
        if self._teacher is None:
            return
        await self._teacher.start()
        if self._mode == "sft":
            await check_speaks(self._teacher)
        else:
            folder = Path(self._config.model.path)
            await check_judges(self._teacher, TextTokenizer(folder, name=folder.name))
        _log.info("teacher_answers", url=self._teacher.config.url, model=self._teacher.config.model, mode=self._mode)

    async def close(self) -> None:
        """Close the connection."""
        if self._teacher is not None:
            await self._teacher.close()

    def check_source(self, name: str, *, given: bool) -> None:
        """Whether the environment ``name`` can be learned from in this mode, now that it is loaded.

        Raises:
            BadInputError: it cannot.
        """
        learns = self._mode == "sft" and name not in self._evaluations
        where = f"environments.{name}.type: {self._types[name]}"
        if given and not learns:
            raise BadInputError(f"{where} has given conversations, which only train environments of mode sft take")
        if not given and learns and self._teacher is None:
            raise BadInputError(f"{where} is played, and spec.algorithm.teacher.url names nobody who plays it")

    def given(self, request: EpisodeRequest) -> EpisodeOutcome:
        """The outcome of a task that is a conversation."""
        assert not isinstance(self._codec, EngineRendering)  # noqa: S101 - refused in the constructor
        limit = self._config.model.max_model_len
        outcome = given_outcome(self._codec, request, self._config.batch, max_tokens=limit)
        if outcome.error is not None:
            _log.warning("conversation_left_out", environment=request.environment.name, error=outcome.error)
        return outcome

    def maker(self, environment: str) -> Callable[[SessionSpec], GatewaySession]:
        """How sessions of an environment are made: the teacher's where it plays, else the engines'."""
        teacher = self._teacher
        if self._mode != "sft" or teacher is None or environment in self._evaluations:
            return GatewaySession
        return lambda spec: TeacherSession(spec, teacher)

    def taught(self, played: Try) -> Built | None:
        """What the policy learns of an episode that the teacher played; None of one that it did not."""
        if not isinstance(played.session, TeacherSession):
            return None
        batch = self._config.batch
        return played.session.taught(
            played.owner, batch.sft, reward=played.progress.reward, max_branches=batch.max_branches
        )

    async def judged(self, built: Built, environment: str) -> Built:
        """The samples with the teacher's logprobs, in mode opd.

        Raises:
            EpisodeError: the teacher refuses, cannot be reached, or leaves a logprob out.
        """
        if self._mode != "opd" or self._teacher is None or environment in self._evaluations:
            return built
        return replace(built, samples=await judged(self._teacher, built.samples))
