"""What the preflight asks of an engine, one check after the other; the first that fails ends it."""

import asyncio
import statistics
from collections.abc import Callable, Sequence

from echorl_cli.preflight.calls import CallFailed, EngineCalls, completion, distance
from echorl_core.names import SERVED_BASE_NAME, SERVED_MODEL_NAME
from echorl_core.preflight_step import PreflightStep
from echorl_core.wire.weights import PolicyAnnouncement, Probe

TAKES_EFFECT = 2.0
"""Tolerances that a swap must move the engine's logprobs by, at the least."""
PAIRS = 8
"""Requests for the adapter, and as many for the base, that are sent at once."""
_ROUNDS = 5
_LENGTH = 48

Say = Callable[[str], None]


class CheckFailed(Exception):
    """The engine does not do what a run with an adapter rests on."""


class Checks:
    """The checks of one engine; ``say`` gets a line for each that passes."""

    def __init__(self, calls: EngineCalls, step: PreflightStep, *, max_slowdown: float, say: Say) -> None:
        self._calls, self._versions = calls, step.versions
        self._max_slowdown, self._say = max_slowdown, say
        self._tokens = self._probe(step.versions[0]).token_ids

    async def run(self) -> None:
        """All of them.

        Raises:
            CheckFailed: says which check, what was found and what is accepted.
        """
        try:
            await self._closed()
            await self._start()
            await self._step()
            await self._swaps()
            await self._one_batch()
            await self._slowdown()
        except CallFailed as error:
            raise CheckFailed(f"the engine: {error}") from error

    @staticmethod
    def _probe(version: PolicyAnnouncement) -> Probe:
        assert version.probe is not None  # noqa: S101 - the step probes every version
        return version.probe

    async def _closed(self) -> None:
        for model in (SERVED_MODEL_NAME, SERVED_BASE_NAME):
            status, _ = await self._calls.status("POST", "/v1/completions", completion(model, self._tokens, 1))
            if status != 409:
                raise CheckFailed(f"before version 0 a request for {model} got HTTP {status}, accepted is 409")

    async def _start(self) -> None:
        start = self._versions[0]
        await self._calls.swap(start)
        distances = [await self._agrees(model, start) for model in (SERVED_MODEL_NAME, SERVED_BASE_NAME)]
        self._say(f"version 0 is the model itself: logprobs differ from the trainer's by {max(distances):.2g}")

    async def _step(self) -> None:
        seconds = await self._calls.swap(self._versions[1])
        apart = await self._agrees(SERVED_MODEL_NAME, self._versions[1])
        await self._agrees(SERVED_BASE_NAME, self._versions[0])
        self._say(f"version 1, after a step: by {apart:.2g}; swapped in {seconds:.3f} s; the base is as before")

    async def _swaps(self) -> None:
        worst, pauses = 0.0, []
        for before, version in zip(self._versions[1:], self._versions[2:], strict=False):
            old = await self._calls.prompt_logprobs(SERVED_MODEL_NAME, self._tokens)
            pauses.append(await self._calls.swap(version))
            new = await self._calls.prompt_logprobs(SERVED_MODEL_NAME, self._tokens)
            tolerance = self._probe(version).tolerance
            if distance(new, old) <= TAKES_EFFECT * tolerance:
                raise CheckFailed(
                    f"the swap from version {before.version} to {version.version} took no effect: logprobs moved by "
                    f"{distance(new, old):.2g}, accepted is more than {TAKES_EFFECT * tolerance:.2g}"
                )
            worst = max(worst, await self._agrees(SERVED_MODEL_NAME, version))
        self._say(f"{len(pauses)} swaps took effect: by {worst:.2g}; {min(pauses):.3f} to {max(pauses):.3f} s each")

    async def _one_batch(self) -> None:
        adapter, base = self._versions[-1], self._versions[0]
        asked = (SERVED_MODEL_NAME, SERVED_BASE_NAME) * PAIRS
        answers = await asyncio.gather(*(self._calls.prompt_logprobs(model, self._tokens) for model in asked))
        worst = 0.0
        for model, logprobs in zip(asked, answers, strict=True):
            version = adapter if model == SERVED_MODEL_NAME else base
            worst = max(worst, self._close(f"{model}, in one batch with the other", logprobs, version))
        self._say(f"{PAIRS} requests for the adapter and {PAIRS} for the base at once: by {worst:.2g}")

    async def _slowdown(self) -> None:
        alone, mixed = [], []
        for _ in range(_ROUNDS):
            alone += await self._base_seconds([SERVED_BASE_NAME] * 2 * PAIRS)
            mixed += await self._base_seconds([SERVED_BASE_NAME, SERVED_MODEL_NAME] * PAIRS)
        ratio = statistics.median(mixed) / statistics.median(alone)
        text = f"requests for the base take {ratio:.2f} times as long beside as many for the adapter"
        if ratio > self._max_slowdown:
            raise CheckFailed(f"{text}, accepted is up to {self._max_slowdown:g}")
        self._say(text)

    async def _base_seconds(self, models: Sequence[str]) -> list[float]:
        """Seconds of each request for the base among those that are sent at once."""
        timings = await asyncio.gather(*(self._calls.timed(model, self._tokens, _LENGTH) for model in models))
        return [seconds for model, seconds in zip(models, timings, strict=True) if model == SERVED_BASE_NAME]

    async def _agrees(self, model: str, version: PolicyAnnouncement) -> float:
        return self._close(model, await self._calls.prompt_logprobs(model, self._tokens), version)

    def _close(self, what: str, logprobs: Sequence[float], version: PolicyAnnouncement) -> float:
        probe = self._probe(version)
        worst = distance(logprobs, probe.logprobs)
        if worst > probe.tolerance:
            raise CheckFailed(
                f"{what}, version {version.version}: logprobs differ from the trainer's by {worst:.2g}, "
                f"accepted is up to {probe.tolerance:g}"
            )
        return worst
