"""The ledger in a process: it reads the clock, keeps what a successor needs, and tells what ``GET /state`` shows.

    engine pool, scheduler, training, trainer's reports --events--> Meter --Ledger--> goodput.json, /state, /metrics

``attempts/N/goodput.json`` is written with every seal and step and every half minute. What a killed process did since
counts as a restart; what it said before stands.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from echorl_core.rundir import RunDirectory, write_file
from echorl_core.wire.goodput import THROWN_AWAY, Goodput, Seconds, TimeState, useful_ratio
from echorl_orchestrator.accounting.ledger import Ledger, Request, Saved

log = structlog.get_logger()

NAME = "goodput.json"
SAVE_S = 30.0
"""Between two saves while nothing is trained or sealed."""
MEASURE_S = 60.0
"""Between two values in the run's state: an operator writes status for each."""
LOOK_S = 5.0
"""Between two looks at the engines' queues."""


class Meter:
    """Takes events as they happen. Without a folder it counts for nobody."""

    def __init__(
        self,
        folder: Path | None = None,
        saved: Saved | None = None,
        *,
        attempt: int = 1,
        ranks: int = 1,
        gpus_per_engine: int = 1,
        kept_tokens: int = 0,
    ) -> None:
        """``folder``: of the attempt. ``saved``: by it, or by the newest attempt before; the rest: see ``Ledger``."""
        # Steps of the wall clock, as by time servers, would else be counted.
        self._epoch = time.time() - time.monotonic()
        self._file = None if folder is None else folder / NAME
        now = self._now()
        self._ledger = Ledger(
            saved,
            now=now,
            attempt=attempt,
            ranks=ranks,
            gpus_per_engine=gpus_per_engine,
            kept_tokens=kept_tokens,
        )
        self._before: Seconds = {} if saved is None else saved.seconds
        self._tokens_before: dict[TimeState, int] = {} if saved is None else saved.tokens
        self._writing = asyncio.Lock()
        self._looks = 0
        self._queued = self._kv_usage = 0.0
        self.goodput: Goodput | None = None
        """As it was measured last; None before the first measurement."""

    @classmethod
    def opened(
        cls, run: RunDirectory, attempt: int, *, ranks: int, gpus_per_engine: int, kept_tokens: int = 0
    ) -> "Meter":
        """Go on from what is kept in the run's directory. Blocking."""
        return cls(
            run.attempt(attempt),
            newest(run, attempt),
            attempt=attempt,
            ranks=ranks,
            gpus_per_engine=gpus_per_engine,
            kept_tokens=kept_tokens,
        )

    def engines(self, doing: Mapping[str, TimeState | None]) -> None:
        """What every known engine does from now on, by name; None: it serves."""
        now = self._now()
        for name in self._ledger.engine_names - doing.keys():
            self._ledger.engine_gone(now, name)
        for name, state in doing.items():
            self._ledger.engine(now, name, state)

    def asked(self, engine: str, episode: str) -> Request:
        """An episode's request goes to an engine."""
        return self._ledger.asked(self._now(), engine, _whole(episode))

    def answered(self, request: Request, *, lost: bool) -> None:
        """It is over; ``lost``: the engine failed it."""
        self._ledger.answered(self._now(), request, lost=lost)

    def sampled(self, episode: str, tokens: int) -> None:
        """An answer to an episode holds tokens."""
        self._ledger.sampled(_whole(episode), tokens)

    def kept(self, episode: str, tokens: int) -> None:
        """An episode is given tokens again that an earlier process of the attempt was given."""
        self._ledger.kept(_whole(episode), tokens)

    def not_kept(self, tokens: int) -> None:
        """No episode will be given these again."""
        self._ledger.not_kept(tokens)

    def decided(self, episode: str, state: TimeState) -> None:
        """What became of all that was sampled for an episode so far."""
        self._ledger.decided(_whole(episode), state)

    async def sealed(self, step: int, episodes: set[str]) -> None:
        """The batch of ``step`` holds these episodes."""
        self._ledger.sealed(step, episodes)
        await self._save()

    async def step(self, step: int, seconds: Mapping[str, float]) -> None:
        """A step was trained: ``seconds`` as ``StepReport`` has them."""
        self._ledger.step(self._now(), step, seconds)
        await self._save()

    async def restarted(self) -> None:
        """All trainer ranks start again in place."""
        self._ledger.restarted()
        await self._save()

    async def keep(self) -> None:
        """The process ends, and another one goes on with the attempt."""
        await self._save()

    async def close(self) -> None:
        """The attempt ends, and its pods with it."""
        self._ledger.close(self._now())
        await self._save()

    async def run(self, load: Callable[[], Mapping[str, float]], on_measured: Callable[[], None]) -> None:
        """Look, save and measure until cancelled.

        Args:
            load: of engines now: ``EnginePool.metrics_snapshot``.
            on_measured: called when ``goodput`` is new.
        """
        saved = measured = self._now()
        while True:
            await asyncio.sleep(LOOK_S)
            self._look(load())
            if self._now() - saved >= SAVE_S:
                saved = self._now()
                await self._save()
            if self._now() - measured >= MEASURE_S:
                measured = self._now()
                self.measure()
                on_measured()

    def measure(self) -> None:
        """Make ``goodput`` anew."""
        now, looks = self._now(), self._looks
        seconds, tokens = self._ledger.seconds(now), self._ledger.tokens
        told = {
            role: {str(state): round(value, 3) for state, value in states.items()} for role, states in seconds.items()
        }
        ratio = useful_ratio(told)
        self.goodput = Goodput(
            measured_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            gpu_seconds=told,
            useful_ratio=None if ratio is None else round(ratio, 4),
            untrained_tokens={str(state): tokens.get(state, 0) for state in THROWN_AWAY},
            queued=self._queued / looks if looks else None,
            kv_usage=self._kv_usage / looks if looks else None,
        )
        self._looks, self._queued, self._kv_usage = 0, 0.0, 0.0

    def counted(self) -> tuple[Seconds, dict[TimeState, int]]:
        """GPU-seconds and sampled tokens by state that this process has counted: from 0, and what is undecided."""
        seconds = {
            role: {
                state: states.get(state, 0.0)
                - (0.0 if state is TimeState.UNDECIDED else self._before.get(role, {}).get(state, 0.0))
                for state in TimeState
            }
            for role, states in self._ledger.seconds(self._now()).items()
        }
        tokens = self._ledger.tokens
        return seconds, {state: tokens.get(state, 0) - self._tokens_before.get(state, 0) for state in THROWN_AWAY}

    def _look(self, load: Mapping[str, float]) -> None:
        if engines := load["engines"]:
            self._looks += 1
            self._queued += load["waiting"] / engines
            self._kv_usage += load["kv_usage_mean"]

    async def _save(self) -> None:
        """A volume that takes nothing costs the account half a minute, not the run."""
        file = self._file
        if file is None:
            return
        async with self._writing:
            data = msgspec.json.encode(self._ledger.saved(self._now()))
            try:
                await asyncio.to_thread(write_file, file, data, within=file.parent)
            except OSError as error:
                log.warning("the account of time is not written", file=str(file), error=str(error))

    def _now(self) -> float:
        return self._epoch + time.monotonic()


def newest(run: RunDirectory, attempt: int) -> Saved | None:
    """What the attempt, or the newest one before it that kept an account, has saved; None: nothing. Blocking."""
    for number in range(attempt, 0, -1):
        with suppress(FileNotFoundError):
            file = run.attempt(number) / NAME
            try:
                return msgspec.json.decode(file.read_bytes(), type=Saved)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.warning("the account of time is unreadable and left out", file=str(file), error=str(error))
    return None


def _whole(episode: str) -> str:
    """Members of a multi-agent episode have its name and a part of their own."""
    return episode.partition("/")[0]
