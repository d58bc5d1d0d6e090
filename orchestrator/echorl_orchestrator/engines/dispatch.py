"""Requests for tokens to engines: an episode sticks to one engine, and nothing passes while no engine may serve."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from echorl_core import names
from echorl_core.config import SamplingConfig
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.engines.admin import message_of
from echorl_orchestrator.engines.calls import Calls, CallsGivenUpError
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.chat import CHAT, chat_body, check_prompt_fits, parse_chat
from echorl_orchestrator.engines.client import (
    COMPLETIONS,
    GENERATE,
    Answer,
    GenerationClient,
    ImpossibleLogprobError,
    Sampled,
    generate_body,
    parse_generation,
    parse_prompt_logprobs,
    prompt_logprobs_body,
)
from echorl_orchestrator.engines.engine import COUNTED, Engine, EngineState
from echorl_orchestrator.engines.generation import ChatGeneration, Generation
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.metrics.process_counters import IMPOSSIBLE_ANSWERS

log = structlog.get_logger()


class Dispatcher:
    """Chooses engines and sends requests; implements TokenGenerator and ChatGenerator for the pool."""

    def __init__(
        self,
        client: GenerationClient,
        engines: Callable[[], list[Engine]],
        changes: Changes,
        patience_s: float,
        meter: Meter | None = None,
    ) -> None:
        """``meter``: is told of every request for tokens."""
        self._client, self._meter = client, meter or Meter()
        self._engines = engines
        self._changes = changes
        self._patience_s = patience_s
        self._episodes: dict[str, Engine] = {}

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = names.SERVED_MODEL_NAME,
    ) -> Generation:
        """One completion on the episode's engine."""
        body = generate_body(
            prompt_ids=prompt_ids, sampling=sampling, max_tokens=max_tokens, stop_ids=stop_ids, model=model
        )
        sent = await self._ask(episode, GENERATE, body)
        _check_status(sent.engine, sent.answer)
        with _believed(sent.engine):
            generation = sent.generation(parse_generation(sent.answer.body))
        self._meter.sampled(episode, len(generation.token_ids))
        return generation

    async def chat(
        self,
        *,
        episode: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        sampling: SamplingConfig,
        max_tokens: int,
    ) -> ChatGeneration:
        """One chat completion on the episode's engine, which renders the messages."""
        body = chat_body(messages=messages, tools=tools, sampling=sampling, max_tokens=max_tokens)
        sent = await self._ask(episode, CHAT, body)
        check_prompt_fits(sent.answer)
        _check_status(sent.engine, sent.answer)
        with _believed(sent.engine):
            reply = parse_chat(sent.answer.body, max_tokens)
        self._meter.sampled(episode, len(reply.sampled.token_ids))
        return ChatGeneration(reply.prompt_ids, sent.generation(reply.sampled), reply.message)

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of tokens 1.. given their prefix, on the least-loaded engine."""
        engine = await self._wait(self._least_loaded)
        answer = await self._send(engine, COMPLETIONS, prompt_logprobs_body(token_ids), {})
        _check_status(engine, answer)
        with _believed(engine):
            return parse_prompt_logprobs(answer.body, token_ids)

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to."""
        engine = self._episodes.pop(episode, None)
        if engine is not None:
            engine.pinned -= 1

    def _of_episode(self, episode: str) -> Engine | None:
        """The engine of the episode if a request may go there now; a new one if its own cannot serve any more."""
        engine = self._episodes.get(episode)
        if engine is not None and engine.state in COUNTED:
            return engine if engine.state is EngineState.SERVING else None
        chosen = self._least_loaded()
        if chosen is not None:
            self.release(episode)
            self._episodes[episode] = chosen
            chosen.pinned += 1
        return chosen

    def _least_loaded(self) -> Engine | None:
        serving = [engine for engine in self._engines() if engine.state is EngineState.SERVING]
        return min(serving, key=lambda engine: (engine.in_flight, engine.pinned, engine.address), default=None)

    async def _wait(self, look: Callable[[], Engine | None]) -> Engine:
        try:
            return await self._changes.until(look, self._patience_s)
        except TimeoutError as error:
            states = ", ".join(f"{engine.address} {engine.state}" for engine in self._engines()) or "none known"
            message = f"no engine may serve for {self._patience_s} s; engines: {states}"
            raise EpisodeError(ErrorKind.PROVIDER, message) from error

    async def _ask(self, episode: str, path: str, body: bytes) -> "_Sent":
        """Have the episode's engine sample."""
        engine = await self._wait(lambda: self._of_episode(episode))
        started, version_low = time.monotonic(), engine.version
        with self._metered(engine, episode):
            answer = await self._send(engine, path, body, {names.HEADER_SESSION: episode})
        return _Sent(engine, answer, version_low, time.monotonic() - started)

    @contextmanager
    def _metered(self, engine: Engine, episode: str) -> Iterator[None]:
        """Account for the engine's time that one request of an episode takes."""
        request, lost = self._meter.asked(engine.address, episode), False
        try:
            yield
        except EpisodeError:
            lost = True
            raise
        finally:
            self._meter.answered(request, lost=lost)

    async def _send(self, engine: Engine, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """The answer of one request, once it is sure that the engine sampled it with verified weights."""
        calls = engine.calls
        engine.in_flight += 1
        try:
            with calls.running():
                answer = await self._client.post(engine.address, path, body, headers)
            # Between resume and probe nobody knows yet whether the weights are right.
            if engine.state is EngineState.UPDATING:
                await self._settled(engine, calls)
        except CallsGivenUpError as error:
            engine.suspect.set()
            raise _given_up(engine, str(error)) from None
        except EpisodeError:
            engine.suspect.set()
            raise
        finally:
            engine.in_flight -= 1
        if answer.boot_id != engine.boot_id:
            engine.suspect.set()
            message = f"engine {engine.address} was restarted: boot id {answer.boot_id}, before {engine.boot_id}"
            raise EpisodeError(ErrorKind.PROVIDER, message)
        return answer

    async def _settled(self, engine: Engine, calls: Calls) -> None:
        def settled() -> bool | None:
            return True if calls.reason is not None or engine.state is not EngineState.UPDATING else None

        try:
            await self._changes.until(settled, self._patience_s * 2)
        except TimeoutError as error:
            message = f"engine {engine.address} is still updating after {self._patience_s * 2} s"
            raise EpisodeError(ErrorKind.PROVIDER, message) from error
        if calls.reason is not None:
            raise CallsGivenUpError(calls.reason)


@dataclass(frozen=True)
class _Sent:
    """An answer to a request for tokens, and where and when it was sampled."""

    engine: Engine
    answer: Answer
    version_low: int
    seconds: float

    def generation(self, sampled: Sampled) -> Generation:
        return Generation(
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            finish_reason=sampled.finish_reason,
            version_low=self.version_low,
            version_high=self.engine.version if self.answer.version is None else self.answer.version,
            engine=self.engine.address,
            boot_id=self.engine.boot_id or "",
            seconds=self.seconds,
        )


@contextmanager
def _believed(engine: Engine) -> Iterator[None]:
    """Read an answer; the engine is put away if it cannot be true, whoever asked."""
    try:
        yield
    except ImpossibleLogprobError as error:
        IMPOSSIBLE_ANSWERS.inc()
        log.error("engine answers what cannot be true", engine=engine.address, error=error.message)
        engine.distrust(error.message)
        raise


def _given_up(engine: Engine, reason: str) -> EpisodeError:
    return EpisodeError(ErrorKind.PROVIDER, f"engine {engine.address} is {engine.state}: {reason}")


def _check_status(engine: Engine, answer: Answer) -> None:
    if answer.status == 200:
        return
    message = f"engine {engine.address}: HTTP {answer.status}: {message_of(answer.body)}"
    # 4xx says that the request itself is wrong, so another engine would refuse it too. 409 comes from the middleware.
    if 400 <= answer.status < 500 and answer.status != 409:
        raise EpisodeError(ErrorKind.INVALID_RESPONSE, message)
    engine.suspect.set()
    raise EpisodeError(ErrorKind.PROVIDER, message)
