"""An episode that a teacher plays in the policy's place: messages alone, made into tokens when it is over."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from echorl_core.config import SamplingConfig, SftConfig
from echorl_orchestrator.chat.messages import Tool, canonical_message, message_key
from echorl_orchestrator.codec.engine_rendering import EngineRendering, PromptTooLongError
from echorl_orchestrator.codec.protocol import ChatCodec, Parsed
from echorl_orchestrator.endpoints.chat import endpoint_says
from echorl_orchestrator.endpoints.client import EndpointClient
from echorl_orchestrator.episodes.samples import Built, Owner, kept_branches
from echorl_orchestrator.episodes.sft import Talk, sft_samples
from echorl_orchestrator.gateway.history import Branch, Continuation
from echorl_orchestrator.gateway.prompts import Conversation
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn


class TeacherSession(GatewaySession):
    """A session whose turns are a teacher's. Its branches hold messages and no tokens."""

    def __init__(self, spec: SessionSpec, teacher: EndpointClient) -> None:
        super().__init__(spec)
        self._teacher = teacher
        self._tools_of: dict[int, Sequence[Tool]] = {}
        """Of each branch."""
        self._last: dict[int, int] = {}
        """Newest turn of each branch."""
        self._unusable: dict[int, set[int]] = {}
        """Messages of each branch that were cut off or that nobody could read: context alone."""

    async def _play(
        self, talk: Conversation, found: Continuation | None, sampling: SamplingConfig, start_s: float
    ) -> Turn:
        prompt_tokens = self._checked_count(talk)
        room = self.spec.max_model_len - prompt_tokens
        limit = min(sampling.max_completion_tokens, room)
        said = await endpoint_says(self._teacher, talk.messages, talk.tools, sampling, max_tokens=limit)
        answer = canonical_message(said.message, len(talk.messages))
        calls = [{"id": call["id"], **call["function"]} for call in answer.get("tool_calls", ())]
        usable = [call for call in calls if isinstance(call["arguments"], dict)]
        parsed = Parsed(answer["content"], usable, answer.get("reasoning_content"), len(usable) < len(calls))
        message, action = self._answer(parsed, truncated=said.truncated)
        branch = self._continued(talk.messages)
        branch.messages = [*talk.messages, message]
        self._tools_of[branch.number] = talk.tools
        place = self._place(talk, branch, self._last.get(branch.number))
        self._last[branch.number] = place.number
        if said.truncated or parsed.malformed:
            self._unusable.setdefault(branch.number, set()).add(len(talk.messages))
        called = bool(action.tool_calls) and not said.truncated
        turn = Turn(
            number=place.number,
            message=message,
            action=action,
            finish_reason="tool_calls" if called else "length" if said.truncated else "stop",
            prompt_tokens=prompt_tokens,
            completion_tokens=said.completion_tokens,
            branch=branch.number,
            malformed=parsed.malformed,
            start_s=start_s,
            end_s=self._seconds(),
        )
        return self._counted(turn)

    def taught(
        self,
        owner: Owner,
        config: SftConfig,
        *,
        reward: float | None,
        max_branches: int,
        unused: Collection[int] = (),
    ) -> Built:
        """What the policy learns of the episode: a sample for each branch, every message trained once.

        Branches that end with one of the turns ``unused`` are left out.
        """
        codec = self.spec.codec
        assert not isinstance(codec, EngineRendering)  # noqa: S101 - refused when the player was made
        used = [branch for branch in self.history.branches if self._last[branch.number] not in unused]
        kept = kept_branches(used, max_branches)
        talks = [
            Talk(branch.messages, self._tools_of[branch.number], self._context(branch, kept[:place]))
            for place, branch in enumerate(kept)
        ]
        most = self.spec.max_model_len
        built = sft_samples(codec, talks, owner, config, max_tokens=most, reward=reward).built
        left_out = len(self.history.branches) - len(used)
        return Built(built.samples, len(used) - len(kept), built.kept_tokens, 0, 0, left_out)

    def _context(self, branch: Branch, earlier: Sequence[Branch]) -> frozenset[int]:
        shared = max((_shared(branch.messages, one.messages) for one in earlier), default=0)
        return frozenset({*range(shared), *self._unusable.get(branch.number, ())})

    def _count(self, codec: ChatCodec, talk: Conversation) -> int:
        return len(codec.render(talk.messages, talk.tools, talk.warnings).ids)

    def _checked_count(self, talk: Conversation) -> int:
        codec = self.spec.codec
        assert not isinstance(codec, EngineRendering)  # noqa: S101 - refused when the player was made
        count = self._count(codec, talk)
        if count >= self.spec.max_model_len:
            raise PromptTooLongError(f"the prompt has {count} tokens of at most {self.spec.max_model_len - 1}")
        return count

    def _continued(self, messages: Sequence[Mapping[str, Any]]) -> Branch:
        """The branch whose messages these continue; a new one if there is none."""
        for branch in self.history.branches:
            if _shared(messages, branch.messages) == len(branch.messages):
                return branch
        branch = Branch(len(self.history.branches))
        self.history.branches.append(branch)
        return branch


def _shared(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> int:
    """How many messages both begin with."""
    pairs = zip(left, right, strict=False)
    return next(
        (place for place, (a, b) in enumerate(pairs) if message_key(a) != message_key(b)), min(len(left), len(right))
    )
