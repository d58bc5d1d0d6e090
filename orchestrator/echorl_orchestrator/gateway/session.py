"""One episode's conversation with the engines: typed turns over an append-only, branching history.

Every trained token is one that an engine returned here. A turn whose messages continue an earlier turn exactly
extends that turn's tokens; any other turn opens a new branch, which shares the tokens that are the same.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from echorl_core.config import SamplingConfig
from echorl_orchestrator.chat.messages import Message, MessageError, Tool, canonical_message, message_key, name_results
from echorl_orchestrator.codec.engine_rendering import EngineRendering, PromptTooLongError
from echorl_orchestrator.codec.protocol import ChatCodec, Parsed, WarningSpans
from echorl_orchestrator.engines.generation import ChatGenerator, Generation
from echorl_orchestrator.environments.contract import Action
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.history import Branch, Continuation, History, TurnEnd, TurnPlace
from echorl_orchestrator.gateway.prefix_cache import PrefixCache
from echorl_orchestrator.gateway.prompts import Conversation, Prompt, prepare, returned_prompt
from echorl_orchestrator.gateway.tokens import sampled_columns
from echorl_orchestrator.gateway.turns import SessionClosedError, SessionFacts, SessionSpec, Turn, TurnLimitError
from echorl_orchestrator.metrics.process_counters import BRANCHES, TURNS

_CLOSE_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Draft:
    """A sampled turn that does not stand in the history yet."""

    talk: Conversation
    continues: int | None
    """Number of the turn that it goes on from."""
    sampling: SamplingConfig
    prompt: Prompt
    generation: Generation
    parsed: Parsed
    first_origin: int
    start_s: float
    end_s: float


class GatewaySession:
    """The canonical history of one episode. ``turn`` is the only way to an engine."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.history = History()
        self.tool_names: list[str] = []
        self.facts = SessionFacts()
        self.closed = False
        self._opened = time.monotonic()
        self._running: set[asyncio.Task[Any]] = set()
        self._counting: set[asyncio.Task[Any]] = set()
        self._calls = 0
        self._tools: tuple[Sequence[Tool], str] | None = None
        self._prefix_cache = PrefixCache()

    async def turn(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        sampling: SamplingConfig | None = None,
        warnings: WarningSpans | None = None,
    ) -> Turn:
        """Sample the next assistant message. Cancelling the call aborts the request on the engine.

        Args:
            messages: the whole conversation so far, in order.
            tools: tool definitions.
            sampling: None means the environment's.
            warnings: character spans of ``messages`` that are harness warnings.

        Raises:
            SessionClosedError: the session is closed.
            PromptTooLongError: no room for one token under ``max_model_len``.
            TurnLimitError: ``max_turns`` are used up.
            MessageError: a message that no codec takes.
            EpisodeError: the engine's failure.
        """
        self._refuse_when_over()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a turn needs a running task")
        start_s = self._seconds()
        self._running.add(task)
        try:
            turn = await self._serialised(self._conversation(messages, tools, warnings), sampling, start_s)
        except BaseException as error:
            self._note(error, start_s)
            raise
        finally:
            self._running.discard(task)
        return turn

    async def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
        """How many tokens the prompt of such a turn would have. Nothing is sampled, and no turn counted.

        Raises:
            SessionClosedError: the session is closed.
            MessageError: a message that no codec takes.
            EpisodeError: the failure of the engine that renders the prompt.
        """
        if self.closed:
            raise SessionClosedError(f"session {self.spec.key} is closed")
        talk = self._conversation(messages, tools, None)
        codec = self.spec.codec
        return await self._engine_count(talk) if isinstance(codec, EngineRendering) else self._count(codec, talk)

    def _count(self, codec: ChatCodec, talk: Conversation) -> int:
        return len(prepare(codec, self.history, self.history.find(talk.nodes), talk, list(self.tool_names)))

    async def _engine_count(self, talk: Conversation) -> int:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a count needs a running task")
        self._counting.add(task)
        try:
            return await self._renderer().count_tokens(
                episode=self.spec.episode, messages=talk.messages, tools=talk.tools
            )
        except EpisodeError as error:
            self.facts.failure = error
            raise
        finally:
            self._counting.discard(task)

    async def close(self) -> None:
        """End the session: running turns and counts are cancelled, later ones refused. Idempotent."""
        self.closed = True
        running = [task for task in self._running | self._counting if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_DEADLINE_S)

    def _seconds(self) -> float:
        return time.monotonic() - self._opened

    def _refuse_when_over(self) -> None:
        if self.closed:
            raise SessionClosedError(f"session {self.spec.key} is closed")
        limit = self.spec.max_turns
        if limit is not None and len(self.facts.turns) + len(self._running) >= limit:
            self.facts.turn_limit_hit = True
            raise TurnLimitError(f"the episode had its {limit} turns (maxTurns)")

    def _note(self, error: BaseException, start_s: float) -> None:
        self.facts.aborted.append((start_s, self._seconds()))
        if isinstance(error, PromptTooLongError):
            self.facts.prompt_too_long = True
        elif isinstance(error, EpisodeError):
            self.facts.failure = error

    def _conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool], warnings: WarningSpans | None
    ) -> Conversation:
        if not messages:
            raise MessageError("messages: found none, accepted is at least one")
        tools_key = self._key_of(tools)
        canonical, nodes = self._prefix_cache.prefix(messages, tools_key)
        fresh = [canonical_message(messages[index], index) for index in range(len(nodes), len(messages))]
        canonical += fresh
        name_results(canonical, len(nodes))
        nodes = self.history.path(tools_key, fresh, nodes)
        self._prefix_cache.keep(messages, tools_key, canonical, nodes)
        return Conversation(canonical, nodes, tools, tools_key, warnings or {})

    def _key_of(self, tools: Sequence[Tool]) -> str:
        # Our own loop passes the same list at every turn.
        if self._tools is None or self._tools[0] is not tools:
            self._tools = (tools, json.dumps(list(tools), sort_keys=True))
        return self._tools[1]

    async def _serialised(self, talk: Conversation, sampling: SamplingConfig | None, start_s: float) -> Turn:
        """Play the turn; calls that would extend the same branch wait for each other, others run side by side."""
        prior = self.history.find(talk.nodes)
        async with prior.branch.lock if prior and prior.in_place else contextlib.nullcontext():
            # If the branch grew while this call waited, it is no longer extended in place but forked.
            if self.closed:
                raise SessionClosedError(f"session {self.spec.key} is closed")
            return await self._play(talk, prior, sampling or self.spec.sampling, start_s)

    async def _play(
        self, talk: Conversation, prior: Continuation | None, sampling: SamplingConfig, start_s: float
    ) -> Turn:
        codec = self.spec.codec
        if isinstance(codec, EngineRendering):
            prompt, generation, parsed = await self._engine_rendered(talk, prior, sampling)
        else:
            prompt = prepare(codec, self.history, prior, talk, self.tool_names)
            generation = await self._generate(codec, prompt, sampling)
            parsed = codec.parse(prompt.tail_ids, generation.token_ids, talk.tools)
        first_origin = self.facts.sampled_tokens + 1
        self.facts.sampled_tokens += len(generation.token_ids)
        if generation.finish_reason == "abort":
            raise EpisodeError(ErrorKind.PROVIDER, f"engine {generation.engine} aborted the request")
        draft = Draft(
            talk=talk,
            continues=None if prior is None else prior.end.turn,
            sampling=sampling,
            prompt=prompt,
            generation=generation,
            parsed=parsed.carried(),
            first_origin=first_origin,
            start_s=start_s,
            end_s=self._seconds(),
        )
        return await self._settled(lambda: self._take(draft))

    async def _settled(self, take: Callable[[], Turn]) -> Turn:
        """The turn, once it may stand in the history; ``take`` puts it there, without waiting."""
        return take()

    def _flaw(self, draft: Draft) -> str | None:
        """Why the turn must not train, or None."""
        return None

    def _take(self, draft: Draft) -> Turn:
        """Put a sampled turn into the history."""
        talk, prompt, generation, parsed = draft.talk, draft.prompt, draft.generation, draft.parsed
        flaw = self._flaw(draft)
        branch = self._commit(draft, trains=flaw is None)
        message, action = self._answer(parsed, truncated=generation.finish_reason == "length")
        place = self._place(talk, branch, draft.continues)
        node = self.history.step(talk.nodes[-1], message)
        node.ends.append((branch, TurnEnd(len(branch.ids), prompt.tail, len(prompt), place.number)))
        branch.messages = [*talk.messages, message]
        called = generation.finish_reason == "stop" and bool(action.tool_calls)
        turn = Turn(
            number=place.number,
            message=message,
            action=action,
            finish_reason="tool_calls" if called else "length" if action.truncated else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(generation.token_ids),
            branch=branch.number,
            malformed=parsed.malformed,
            start_s=draft.start_s,
            end_s=draft.end_s,
            flaw=flaw,
        )
        return self._counted(turn)

    def _place(self, talk: Conversation, branch: Branch, continues: int | None) -> TurnPlace:
        """Where the next turn stands among the others; noted."""
        number, opening = len(self.history.turns), message_key(talk.messages[0])
        place = TurnPlace(number, branch.number, continues, talk.nodes[-1].uid, opening, has_tools=bool(talk.tools))
        self.history.turns.append(place)
        return place

    def _counted(self, turn: Turn) -> Turn:
        """Note a turn that is taken: limits and records count it from here on."""
        self.facts.turns.append(turn)
        TURNS.inc()
        return turn

    async def _generate(self, codec: ChatCodec, prompt: Prompt, sampling: SamplingConfig) -> Generation:
        room = self.spec.max_model_len - len(prompt)
        if room < 1:
            raise PromptTooLongError(f"the prompt has {len(prompt)} tokens of at most {self.spec.max_model_len - 1}")
        generation = await self.spec.generator.generate(
            episode=self.spec.episode,
            prompt_ids=prompt.ids,
            sampling=sampling,
            max_tokens=min(sampling.max_completion_tokens, room),
            stop_ids=codec.stop_ids,
            experts_from=None if self.spec.evaluation else prompt.routed,
        )
        return _checked(generation)

    async def _engine_rendered(
        self, talk: Conversation, prior: Continuation | None, sampling: SamplingConfig
    ) -> tuple[Prompt, Generation, Parsed]:
        answer = await self._renderer().chat(
            episode=self.spec.episode,
            messages=talk.messages,
            tools=talk.tools,
            sampling=sampling,
            max_tokens=min(sampling.max_completion_tokens, self.spec.max_model_len),
        )
        message = canonical_message({**answer.message, "role": "assistant"}, len(talk.messages))
        calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        usable = [call for call in calls if isinstance(call["arguments"], dict)]
        parsed = Parsed(message["content"], usable, message.get("reasoning_content"), len(usable) < len(calls))
        return returned_prompt(self.history, prior, answer.prompt_ids), _checked(answer.generation), parsed

    def _renderer(self) -> ChatGenerator:
        generator = self.spec.generator
        if not isinstance(generator, ChatGenerator):
            raise RuntimeError("model.renderer: 'engine' needs a generator that renders chats")
        return generator

    def _commit(self, draft: Draft, *, trains: bool) -> Branch:
        prompt, generation = draft.prompt, draft.generation
        if prompt.in_place and prompt.parent is not None:
            branch = prompt.parent
        else:
            branch = Branch(len(self.history.branches))
            if prompt.parent is not None and prompt.kept:
                branch.append(prompt.parent.columns().head(prompt.kept))
                branch.routed = prompt.parent.routed.head(prompt.kept)
            self.history.branches.append(branch)
            BRANCHES.inc()
        branch.append(prompt.new)
        sampled = sampled_columns(
            generation.token_ids,
            generation.logprobs,
            versions=generation.versions(),
            turn=len(self.facts.turns),
            # Greedy decoding (eval only) has no temperature that a logprob could be divided by.
            temperature=draft.sampling.temperature or 1.0,
            first_origin=draft.first_origin,
            trains=trains,
        )
        branch.append(sampled)
        if generation.experts is not None:
            branch.routed.add(generation.experts_from, generation.experts)
        return branch

    def _answer(self, parsed: Parsed, *, truncated: bool) -> tuple[dict[str, Any], Action]:
        calls: list[dict[str, Any]] = []
        for call in parsed.tool_calls:
            self._calls += 1
            calls.append(
                {"id": call.get("id") or f"call_{self._calls}", "name": call["name"], "arguments": call["arguments"]}
            )
        message: dict[str, Any] = {"role": "assistant", "content": parsed.text}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        if parsed.reasoning is not None:
            message["reasoning_content"] = parsed.reasoning
        return message, Action(parsed.text, calls, truncated)


def _checked(generation: Generation) -> Generation:
    if not generation.token_ids and generation.finish_reason != "abort":
        raise EpisodeError(ErrorKind.INVALID_RESPONSE, f"engine {generation.engine} returned no token")
    return generation
