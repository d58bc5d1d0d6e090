"""Attempts at single-agent episodes that a teacher takes part in: it plays them (sft), or judges the tokens (opd)."""

from dataclasses import replace
from pathlib import Path

from echorl_core.config import BatchConfig, SamplingConfig
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.endpoints.chat import CHAT, endpoint_chat_body
from echorl_orchestrator.endpoints.client import EndpointClient, EndpointError
from echorl_orchestrator.episodes.attempt_outcome import EpisodeAttempt
from echorl_orchestrator.episodes.episode_attempt import EpisodeResources
from echorl_orchestrator.episodes.samples import Built
from echorl_orchestrator.episodes.single_agent import AgentPlayer
from echorl_orchestrator.episodes.teacher.logprobs import check_judges, judged
from echorl_orchestrator.episodes.teacher.session import TeacherSession
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec


class TaughtPlayer(AgentPlayer):
    """Mode sft: the teacher takes the policy's turns, and the policy learns what it said."""

    def __init__(self, resources: EpisodeResources, teacher: EndpointClient, batch: BatchConfig) -> None:
        super().__init__(resources)
        self._teacher, self._batch = teacher, batch

    async def check(self) -> None:
        """Ask the teacher once for what it will be asked.

        Raises:
            BadInputError: it cannot do that, or cannot be reached in time.
        """
        await check_speaks(self._teacher)

    def _session(self, spec: SessionSpec) -> GatewaySession:
        return TeacherSession(spec, self._teacher)

    async def _built(self, played: EpisodeAttempt) -> Built:
        assert isinstance(played.session, TeacherSession)  # noqa: S101 - made above
        return played.session.taught(
            played.owner,
            self._batch.sft,
            reward=played.progress.reward,
            max_branches=self._batch.max_branches,
            unused=played.unused,
        )


class JudgedPlayer(AgentPlayer):
    """Mode opd: the policy plays, and the teacher's logprobs of its tokens go with the samples."""

    def __init__(self, resources: EpisodeResources, teacher: EndpointClient, model: Path) -> None:
        """``model``: folder of the policy, whose tokenizer the teacher must have."""
        super().__init__(resources)
        self._teacher, self._model = teacher, model

    async def check(self) -> None:
        """Ask the teacher once for what it will be asked.

        Raises:
            BadInputError: it cannot do that, or cannot be reached in time.
        """
        await check_judges(self._teacher, TextTokenizer(self._model, name=self._model.name))

    async def _judged(self, built: Built) -> Built:
        return replace(built, samples=await judged(self._teacher, built.samples))


async def check_speaks(teacher: EndpointClient) -> None:
    """One short request at the run's start; waits while the teacher loads.

    Raises:
        BadInputError: the teacher refuses it, or cannot be reached in time.
    """
    config = teacher.config
    hello = [{"role": "user", "content": "hello"}]
    body = endpoint_chat_body(config.model, hello, [], SamplingConfig(), 1)
    try:
        await teacher.post(CHAT, body, busy_s=config.start_deadline_s)
    except EndpointError as error:
        accepted = "accepted is an OpenAI-compatible server that completes chats"
        raise BadInputError(f"spec.algorithm.teacher: {error.message}; {accepted}") from None
