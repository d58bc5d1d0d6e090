"""Requests for tokens to engines: a turn is streamed, and goes on at another engine when its own does not end it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from echorl_core import names
from echorl_core.config import SamplingConfig
from echorl_core.routing import RouterShape
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.engines.answers import (
    BrokenStreamError,
    ImpossibleLogprobError,
    parse_prompt_logprobs,
)
from echorl_orchestrator.engines.bodies import (
    COMPLETIONS,
    GENERATE,
    generate_body,
    prompt_logprobs_body,
    stream_interval,
)
from echorl_orchestrator.engines.calls import Calls, CallsGivenUpError
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.chat import (
    DERENDER,
    RENDER,
    TOKENIZE,
    chat_request,
    check_prompt_fits,
    derender_body,
    parse_count,
    parse_message,
    parse_rendered,
    render_body,
    tokenize_body,
)
from echorl_orchestrator.engines.client import Answer, GenerationClient
from echorl_orchestrator.engines.engine import Engine, EngineState
from echorl_orchestrator.engines.generation import ChatGeneration, Generation
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.engines.journal.journalled_turn import JournalledTurn
from echorl_orchestrator.engines.open_turn import OpenTurn, is_movable
from echorl_orchestrator.engines.placement import Placement
from echorl_orchestrator.engines.reception import Reception, StallWatch, check_boot
from echorl_orchestrator.engines.timing import Timing
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.metrics.process_counters import IMPOSSIBLE_ANSWERS, TURN_TOKENS_KEPT, TURN_TOKENS_LOST

log = structlog.get_logger()


FRUITLESS = 2
"""Streams in a row that broke off without a token; then a turn is given up, since it may be what ends engines."""


class Dispatcher:
    """Sends requests to engines; implements TokenGenerator and ChatGenerator for the pool."""

    def __init__(
        self,
        client: GenerationClient,
        engines: Callable[[], list[Engine]],
        changes: Changes,
        patience_s: float,
        timing: Timing | None = None,
        *,
        meter: Meter | None = None,
        journal: TurnJournal | None = None,
        routing: RouterShape | None = None,
    ) -> None:
        """``meter``: is told of every request for tokens. ``journal``: keeps and tells turns of train episodes.

        ``routing``: of engines that return experts; None: of others. So a turn asks them for no more than it needs.
        """
        self._client, self._meter, self._journal = client, meter or Meter(), journal
        self._placement = Placement(engines, changes, patience_s)
        self._timing = timing or Timing()
        self._stalls = StallWatch(self._timing.stall_s)
        self._closed = False
        self._routing = routing

    def close(self) -> None:
        """Give turns up whose streams break off from now on."""
        self._closed = True

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = names.SERVED_MODEL_NAME,
        experts_from: int | None = None,
    ) -> Generation:
        """One completion on the episode's engine, and on others if that one does not see it through."""
        turn, seconds, fruitless = OpenTurn(prompt_ids, max_tokens, stop_ids), 0.0, 0
        journalled = None if self._journal is None else self._journalled(episode, turn, sampling, model)
        wanted = None if experts_from is None else self._routing
        # Engines that return experts do so unasked: then of as few tokens as can be.
        turn.experts_from = len(prompt_ids) if experts_from is None else experts_from
        try:
            while turn.finish_reason is None:
                engine = await self._placement.of_episode(episode)
                body = generate_body(
                    prompt_ids=turn.ids() if turn.segments else prompt_ids,
                    sampling=sampling,
                    max_tokens=turn.left,
                    stop_ids=stop_ids,
                    interval=stream_interval(engine.pace),
                    model=model,
                    experts_from=None if self._routing is None else turn.routed,
                )
                reception, started = Reception(turn, engine, journalled, wanted), time.monotonic()
                request, kept = self._meter.asked(engine.address, episode), 0
                broken: BrokenStreamError | None = None
                try:
                    await self._stream(episode, engine, reception, body)
                    turn.complete(reception.stream)
                    kept = len(reception.stream.token_ids)
                except BrokenStreamError as error:
                    broken = error
                    kept = _broken_off(turn, engine, reception, error, movable=is_movable(sampling))
                finally:
                    self._meter.answered(request, lost=not kept)
                if journalled is not None:
                    journalled.closed(reception.stream, turn.finish_reason)
                seconds += time.monotonic() - started
                fruitless = 0 if kept else fruitless + 1
                if broken is not None and turn.finish_reason is None:
                    if self._closed or fruitless == FRUITLESS:
                        raise broken
                    await self._placement.leave(episode, engine, self._timing.elsewhere_s)
        except EpisodeError:
            if journalled is not None:
                journalled.failed()
            TURN_TOKENS_LOST.labels("abandoned").inc(turn.begin_anew())
            raise
        generation = turn.generation(seconds)
        self._meter.sampled(episode, len(generation.token_ids) - (0 if journalled is None else journalled.tokens))
        return generation

    def _journalled(self, episode: str, turn: OpenTurn, sampling: SamplingConfig, model: str) -> JournalledTurn | None:
        """The turn's place in the journal, once the turn has what is kept there; None where it has none."""
        if self._journal is None or not is_movable(sampling):
            return None
        settings = generate_body(
            prompt_ids=(), sampling=sampling, max_tokens=turn.max_tokens, stop_ids=turn.stop_ids, model=model
        )
        journalled = self._journal.turn(episode, turn.prompt_ids, settings)
        if journalled is not None and journalled.tokens:
            turn.resume(journalled.segments, journalled.finish_reason)
            self._meter.kept(episode, journalled.tokens)
        return journalled

    async def _stream(self, episode: str, engine: Engine, reception: Reception, body: bytes) -> None:
        """Have the engine go on with the turn until it says that it is over.

        Raises:
            BrokenStreamError: it was not seen through.
            EpisodeError: INVALID_RESPONSE when the engine answers what cannot be used.
        """
        headers = {names.HEADER_SESSION: episode}
        with believed(engine), self._call(engine) as calls:
            with calls.running() as call:
                self._stalls.add(reception, call)
                try:
                    answer = await self._client.stream(
                        engine.address, GENERATE, body, headers, begins=reception.begins, event=reception.event
                    )
                finally:
                    self._stalls.remove(reception)
            check_boot(engine, answer)
            check_status(engine, answer)
            if reception.stream.finish_reason is None:
                raise BrokenStreamError(f"engine {engine.address}: its stream ended before the turn")
            await self._settled(engine, calls)
        reception.stream.vouch(engine.version)

    async def chat(
        self,
        *,
        episode: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        sampling: SamplingConfig,
        max_tokens: int,
    ) -> ChatGeneration:
        """One chat completion: the engine renders the messages, and says what the sampled ids of the turn say."""
        request = chat_request(messages=messages, tools=tools, max_tokens=max_tokens)
        chat = parse_rendered((await self._computed(episode, RENDER, render_body(request))).body)
        generation = await self.generate(
            episode=episode,
            prompt_ids=chat.prompt_ids,
            sampling=sampling,
            max_tokens=chat.max_tokens,
            stop_ids=chat.stop_ids,
            # What of the prompt is known already, nobody can say before it is rendered.
            experts_from=0,
        )
        body = derender_body(request, chat.prompt_ids, generation)
        if body is None:
            return ChatGeneration(chat.prompt_ids, generation, {"role": "assistant", "content": ""})
        message = parse_message((await self._computed(episode, DERENDER, body)).body)
        return ChatGeneration(chat.prompt_ids, generation, message)

    async def count_tokens(self, *, episode: str, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """The length of the prompt that the episode's engine would render for a chat."""
        return parse_count((await self._computed(episode, TOKENIZE, tokenize_body(messages, tools))).body)

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of tokens 1.. given their prefix, on the least-loaded engine."""
        engine = await self._placement.anywhere()
        answer = await self._send(engine, COMPLETIONS, prompt_logprobs_body(token_ids), {})
        check_status(engine, answer)
        with believed(engine):
            return parse_prompt_logprobs(answer.body, token_ids)

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to."""
        self._placement.release(episode)
        if self._journal is not None:
            self._journal.tried(episode)

    async def _computed(self, episode: str, path: str, body: bytes) -> Answer:
        """The answer to what takes no weights: of the episode's engine, or of another if that one gives none."""
        fruitless = 0
        while True:
            engine = await self._placement.of_episode(episode)
            try:
                answer = await self._send(engine, path, body, {names.HEADER_SESSION: episode})
                check_prompt_fits(answer)
                check_status(engine, answer)
            except BrokenStreamError:
                fruitless += 1
                if self._closed or fruitless == FRUITLESS:
                    raise
                await self._placement.leave(episode, engine, self._timing.elsewhere_s)
            else:
                return answer

    async def _send(self, engine: Engine, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """The answer of one request, once it is sure that the engine sampled it with verified weights."""
        with self._call(engine) as calls:
            with calls.running():
                answer = await self._client.post(engine.address, path, body, headers)
            await self._settled(engine, calls)
            check_boot(engine, answer)
        return answer

    @contextmanager
    def _call(self, engine: Engine) -> Iterator[Calls]:
        """Run the block as a call to the engine; one that fails asks for a look at it."""
        engine.in_flight += 1
        try:
            yield engine.calls
        except CallsGivenUpError as error:
            engine.suspect.set()
            raise BrokenStreamError(f"engine {engine.address} is {engine.state}: {error}") from None
        except EpisodeError:
            engine.suspect.set()
            raise
        finally:
            engine.in_flight -= 1

    async def _settled(self, engine: Engine, calls: Calls) -> None:
        if engine.state is EngineState.UPDATING:
            await self._placement.settled(engine, calls)
        elif calls.reason is not None:
            raise CallsGivenUpError(calls.reason)


@contextmanager
def believed(engine: Engine) -> Iterator[None]:
    """Read an answer; the engine is put away if it cannot be true, whoever asked."""
    try:
        yield
    except ImpossibleLogprobError as error:
        IMPOSSIBLE_ANSWERS.inc()
        log.error("engine answers what cannot be true", engine=engine.address, error=error.message)
        engine.distrust(error.message)
        raise


def _broken_off(
    turn: OpenTurn, engine: Engine, reception: Reception, error: BrokenStreamError, *, movable: bool
) -> int:
    """Keep of a stream what the turn can go on from; returns how many tokens."""
    quarantined = engine.state is EngineState.QUARANTINED
    kept, lost = turn.break_off(reception.stream, trusted=not quarantined)
    if turn.finish_reason is None and not movable:
        kept, lost = 0, lost + turn.begin_anew()
    cause = "quarantined" if quarantined else "stalled" if reception.stalled else error.cause
    TURN_TOKENS_KEPT.labels(cause).inc(kept)
    TURN_TOKENS_LOST.labels(cause).inc(lost)
    log.warning("turn broken off", engine=engine.address, error=error.message, cause=cause, kept=kept, lost=lost)
    return kept


def check_status(engine: Engine, answer: Answer) -> None:
    """Raise EpisodeError unless the answer is one: BrokenStreamError where another engine may give it."""
    if answer.status == 200:
        return
    message = f"engine {engine.address}: HTTP {answer.status}: {message_of(answer.body)}"
    # 4xx says that the request itself is wrong, so another engine would refuse it too. 409 comes from the middleware.
    if 400 <= answer.status < 500 and answer.status != 409:
        raise EpisodeError(ErrorKind.INVALID_RESPONSE, message)
    engine.suspect.set()
    raise BrokenStreamError(message, "refused")
