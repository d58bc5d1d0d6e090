"""A small queueing model of a run: engines sample episodes, a trainer takes batches of them, at most so far ahead.

An engine serves up to ``SLOTS`` requests at once, each at the same part of what it samples, and holds the others in its
queue. Episodes are started as the orchestrator's admission has it, those of an engine that goes move to the others, and
a new engine serves after a while. Time goes in whole seconds; what is measured is what the operator gets to see.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from echorl_operator.observed.measurements import Measurement, with_newest
from echorl_operator.plan.autoscaling import Bounds, Engines, Pace, autoscaled

BATCH = 64
AHEAD = 2
"""Batches that may be ready or under way: ``maxStaleness`` 1."""
SLOTS = 48
TOKENS_PER_S = 4000.0
"""Of one engine, over all its requests."""
MEASURE_S = 60


@dataclass
class Engine:
    """One engine: the tokens that each of its requests still lacks, by a clock of tokens per request."""

    given: float = 0.0
    """Tokens that every request has had that was there all the time."""
    running: list[float] = field(default_factory=list)
    """Of requests in slots: the value of ``given`` at which each is done, a heap."""
    queue: list[float] = field(default_factory=list)
    """Tokens of those that wait."""

    def take(self, tokens: float) -> None:
        """A request comes."""
        if len(self.running) < SLOTS:
            heapq.heappush(self.running, self.given + tokens)
        else:
            self.queue.append(tokens)

    def second(self) -> int:
        """Sample for a second; how many episodes that ends."""
        left, ended = TOKENS_PER_S, 0
        while self.running and left > 0:
            needed = (self.running[0] - self.given) * len(self.running)
            if needed > left:
                self.given += left / len(self.running)
                break
            left -= needed
            self.given = heapq.heappop(self.running)
            ended += 1
            if self.queue:
                heapq.heappush(self.running, self.given + self.queue.pop(0))
        return ended

    def handed_over(self) -> list[float]:
        """What its requests still lack."""
        return [end - self.given for end in self.running] + self.queue

    @property
    def load(self) -> int:
        return len(self.running) + len(self.queue)


class Pipeline:
    """A run with some engines; a test moves its clock."""

    def __init__(
        self, engines: int, *, seed: int, tokens: Callable[[int], float], train_s: float, start_s: int = 120
    ) -> None:
        """``tokens``: an episode's mean length at a second; ``train_s``: mean time of a step without waiting."""
        self._random, self._tokens, self._train_s = random.Random(seed), tokens, train_s
        self.start_s = start_s
        """What a new engine takes until it serves."""
        self.steps: list[int] = []
        """Trained by the end of each minute."""
        self.now = self.step = self._ready = self._under_way = 0
        self.engines = [Engine() for _ in range(engines)]
        self.measured: tuple[Measurement, ...] = ()
        self._starting: list[int] = []
        """When engines that were asked for will serve."""
        self._trains_until: float | None = None
        self._asked_at = self._waited_s = 0.0
        self._trainer_s = self._trainer_waiting_s = self._engines_s = self._engines_waiting_s = 0.0
        self._queued = self._used = 0.0

    def scale(self, wanted: int) -> None:
        """There are to be so many engines."""
        while len(self.engines) + len(self._starting) > wanted:
            if self._starting:
                self._starting.pop()
                continue
            for tokens in self.engines.pop().handed_over():
                self._place(tokens)
        while len(self.engines) + len(self._starting) < wanted:
            self._starting.append(self.now + self.start_s)

    def minute(self) -> None:
        """Until something new is measured."""
        self._queued = self._used = 0.0
        for _ in range(MEASURE_S):
            self._second()
        self.steps.append(self.step)
        self.measured = with_newest(
            self.measured,
            Measurement(
                at=float(self.now),
                step=self.step,
                engines=len(self.engines),
                trainer_s=self._trainer_s,
                trainer_waiting_s=self._trainer_waiting_s,
                engines_s=self._engines_s,
                engines_waiting_s=self._engines_waiting_s,
                queued=self._queued / MEASURE_S,
                kv_usage=self._used / MEASURE_S,
            ),
        )

    def _second(self) -> None:
        self.now += 1
        while self._starting and self._starting[0] <= self.now:
            self._starting.pop(0)
            self.engines.append(Engine())
        while self._ready + self._under_way < BATCH * AHEAD:
            self._under_way += 1
            # A quarter of the mean at the least, and a long tail.
            self._place(self._tokens(self.now) * (0.25 + self._random.lognormvariate(-0.788, 1.0)))
        for engine in self.engines:
            self._engines_s += 1
            self._engines_waiting_s += not engine.load
            self._queued += len(engine.queue) / len(self.engines)
            self._used += len(engine.running) / SLOTS / len(self.engines)
            ended = engine.second()
            self._ready += ended
            self._under_way -= ended
        self._train()

    def _train(self) -> None:
        if self._trains_until is not None and self._trains_until <= self.now:
            self.step += 1
            self._trainer_s += self.now - self._asked_at
            self._trainer_waiting_s += self._waited_s
            self._trains_until, self._asked_at = None, float(self.now)
        if self._trains_until is None and self._ready >= BATCH:
            self._ready -= BATCH
            self._waited_s = self.now - self._asked_at
            self._trains_until = self.now + self._train_s * self._random.uniform(0.85, 1.15)

    def _place(self, tokens: float) -> None:
        min(self.engines, key=lambda engine: engine.load).take(tokens)


def autoscale(pipeline: Pipeline, bounds: Bounds, minutes: int) -> list[tuple[int, int]]:
    """Let the number of engines follow from what is measured. When it changed, in minutes, and to what."""
    engines, changes = Engines(len(pipeline.engines), float(pipeline.now)), []
    for minute in range(1, minutes + 1):
        pipeline.minute()
        decision = autoscaled(engines, pipeline.measured, bounds)
        if decision.wanted != engines.wanted:
            pace = Pace(engines.wanted, decision.pace) if decision.wanted > engines.wanted else None
            engines = Engines(decision.wanted, float(pipeline.now), float(pipeline.start_s), pace)
            changes.append((minute, decision.wanted))
            pipeline.scale(decision.wanted)
    return changes
