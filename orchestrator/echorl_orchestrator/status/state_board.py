"""``GET /state``: what the run does, with a revision that changes exactly when the content does."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from echorl_core.jsonsafe import finite
from echorl_core.wire.batch import StopNotice
from echorl_core.wire.run_state import RunState

REFRESH_S = 1.0


class StateBoard:
    """Holds the newest state of the run; readers wait for one that they have not seen."""

    def __init__(self, build: Callable[[], RunState], clock: Callable[[], float] = time.monotonic) -> None:
        self._build, self._clock = build, clock
        self._changed = asyncio.Condition()
        # A restarted process must not reach by chance the number that a reader has already seen.
        self._revision = int(time.time())
        self._content = _finite(build())
        self._moved_at = clock()
        self._due = asyncio.Event()

    def snapshot(self) -> RunState:
        """The newest state with its revision, and how long ago the run was last seen to move."""
        unmoved_s = round(self._clock() - self._moved_at, 1)
        return msgspec.structs.replace(self._content, revision=self._revision, unmoved_s=unmoved_s)

    async def refresh(self) -> None:
        """Build the state anew; wake readers if it differs."""
        content = _finite(self._build())
        if content == self._content:
            return
        if (content.step, content.phase) != (self._content.step, self._content.phase):
            self._moved_at = self._clock()
        async with self._changed:
            self._content = content
            self._revision += 1
            self._changed.notify_all()

    async def wait(self, since: int | None, wait_s: float) -> RunState:
        """The state, at once if its revision is not ``since``, else after the next change or ``wait_s``."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._revision != since)
        except TimeoutError:
            pass
        return self.snapshot()

    def soon(self) -> None:
        """Something changed; ``run`` refreshes at its next turn."""
        self._due.set()

    async def run(self) -> None:
        """Refresh when told, and every second, until cancelled."""
        while True:
            await self.refresh()
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._due.wait()
            except TimeoutError:
                continue
            self._due.clear()


def _finite(state: RunState) -> RunState:
    """The state as readers get it: a number that is not finite would differ from itself for ever."""
    return msgspec.convert(finite(msgspec.to_builtins(state, enc_hook=str)), RunState)


@dataclass(frozen=True)
class RunStanding:
    """What ``waiting_for`` is told from."""

    next_step: int
    max_steps: int
    trained: int | None
    start_step: int
    dispatch_version: int
    engines: int
    ready: int
    per_batch: int
    in_flight: int
    evals: list[str]
    checkpoints: dict[int, int]
    """Ranks that have reported, by step of a checkpoint under way."""
    num_ranks: int
    notice: StopNotice | None
    no_room: str | None
    """What cannot be written for want of room, and why."""
    failure: str | None

    @property
    def trained_or_start(self) -> int:
        """The step that the trainer has behind it."""
        return self.start_step if self.trained is None else self.trained


def waiting_for(facts: RunStanding) -> str:
    """One sentence: what the run waits for, and why."""
    if facts.failure is not None:
        return f"nothing: the run failed: {facts.failure}"
    if facts.no_room is not None:
        return f"room on the run's volume: {facts.no_room}"
    if facts.notice is not None:
        return _ending(facts, facts.notice)
    if facts.trained is None:
        return f"the trainer to load and announce version {facts.start_step}"
    if facts.dispatch_version < 0:
        engines = f"{facts.engines} found" if facts.engines else "none found yet"
        return f"an engine to hold version {facts.trained} ({engines})"
    return _batch(facts) if facts.next_step <= facts.max_steps else _last_things(facts, facts.trained)


def _last_things(facts: RunStanding, trained: int) -> str:
    if trained < facts.max_steps:
        return f"the trainer to train step {trained + 1} of {facts.max_steps}; every batch is sealed"
    if facts.checkpoints:
        return _checkpoint(facts)
    if facts.evals:
        return f"evals after the last step: {', '.join(facts.evals)}"
    return "the trainer to report its last step"


def _batch(facts: RunStanding) -> str:
    if facts.next_step == facts.trained_or_start + 1:
        return (
            f"episodes of batch {facts.next_step}, which the trainer waits for: "
            f"{facts.ready} of {facts.per_batch} are ready, {facts.in_flight} in flight"
        )
    if facts.ready >= max(facts.per_batch, 1):
        return (
            f"the trainer to train step {facts.trained_or_start + 1}: enough episodes are ready for batch "
            f"{facts.next_step}, which is sealed when the trainer is about to ask for it"
        )
    if not facts.in_flight and facts.ready < facts.per_batch:
        return (
            f"the trainer to train step {facts.trained_or_start + 1}: "
            f"batch {facts.next_step} needs a newer policy than version {facts.dispatch_version}"
        )
    return f"the trainer to train step {facts.trained_or_start + 1}; episodes of batch {facts.next_step} are played"


def _ending(facts: RunStanding, notice: StopNotice) -> str:
    if facts.checkpoints:
        return _checkpoint(facts)
    return f"trainer ranks to end: {notice.reason} at step {notice.step}"


def _checkpoint(facts: RunStanding) -> str:
    step, ranks = next(iter(facts.checkpoints.items()))
    return f"checkpoint {step}: {ranks} of {facts.num_ranks} trainer ranks have saved their parts"
