"""Settings that change while the run goes on: taken in at any time, in effect from the next batch on.

    POST /control/live --accept--> live.json (durable) --> pending --adopt, between two batches--> in effect

A batch is sealed under one set of settings, from its first episode's choice to its seal, and a restarted orchestrator
begins with the newest set that it had accepted.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from echorl_core.config import OrchestratorConfig
from echorl_core.live import LiveReply, LiveSettings, applied, problems
from echorl_core.rundir import write_file
from echorl_orchestrator.disk_room import DiskRoom

log = structlog.get_logger()

LIVE_NAME = "live.json"


class LiveRefused(Exception):
    """Settings that are not taken over; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP: 400 if they are wrong, 409 if they come too late."""


class AttemptSettings:
    """The settings of one attempt."""

    def __init__(self, config: OrchestratorConfig, attempt_folder: Path, room: DiskRoom | None = None) -> None:
        """``config``: as the role was started. ``room``: where settings wait for it."""
        self._started_with, self._file = config, attempt_folder / LIVE_NAME
        self._room = room or DiskRoom()
        self._newest: LiveSettings | None = None
        self._in_effect: LiveSettings | None = None
        self._writing = asyncio.Lock()
        self._came = asyncio.Event()
        self._closed: str | None = None
        self.config = config
        """The role's config, with the settings that are in effect."""
        self.last = config.max_steps
        """The run's last step; ``max_steps``, or the last step sealed before it was lowered."""
        self._on_change: Callable[[], None] = lambda: None

    def load(self) -> None:
        """Take over what was accepted before a restart. Blocking.

        What does not fit the config any more is left out: the operator, which sees no generation, sends it again.
        """
        try:
            settings = msgspec.json.decode(self._file.read_bytes(), type=LiveSettings)
        except FileNotFoundError:
            return
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            log.warning("live settings are unreadable and left out", file=str(self._file), error=str(error))
            return
        if wrong := problems(self._started_with, settings):
            log.warning("live settings do not fit the config and are left out", problems=wrong)
            return
        self._newest = settings
        self._take_effect(settings)

    @property
    def generation(self) -> int:
        """The generation of the settings in effect; 0: as the role was started."""
        return 0 if self._in_effect is None else self._in_effect.generation

    @property
    def waiting(self) -> bool:
        """Whether settings wait for the next batch."""
        return self._newest is not self._in_effect

    async def accept(self, settings: LiveSettings) -> LiveReply:
        """Take settings in; they outlive a restart when this returns. Idempotent per generation.

        Raises:
            LiveRefused: they do not fit the run, are older than the newest, or the run is ending.
        """
        async with self._writing:
            if settings != self._newest:
                self._check(settings)
                data, folder = msgspec.json.encode(settings), self._file.parent
                await self._room.written(LIVE_NAME, lambda: write_file(self._file, data, within=folder))
                # The run may have come to its end during the write.
                self._check_open()
                self._newest = settings
                self._came.set()
                self._on_change()
        return LiveReply(generation=settings.generation, in_effect=not self.waiting)

    def call_on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called whenever settings wait for the next batch."""
        self._on_change = callback

    def hold_last(self, sealed: int) -> None:
        """What is sealed is trained: the last step is no earlier than ``sealed``, whatever the settings say."""
        self.last = max(self.config.max_steps, sealed)

    def adopt(self) -> bool:
        """Between two batches: what waits is in effect from here on. Whether anything waited."""
        if not self.waiting or self._newest is None:
            return False
        self._take_effect(self._newest)
        log.info("live settings are in effect", generation=self.generation, max_steps=self.config.max_steps)
        return True

    async def changed(self) -> None:
        """Wait until settings wait for the next batch."""
        while not self.waiting:
            self._came.clear()
            await self._came.wait()

    def close(self, reason: str) -> None:
        """Refuse every change from now on; ``reason`` is what the sender is told."""
        self._closed = reason

    def _check(self, settings: LiveSettings) -> None:
        self._check_open()
        newest = self._newest
        if newest is not None and settings.generation <= newest.generation:
            what = "other settings" if settings.generation == newest.generation else f"generation {newest.generation}"
            raise LiveRefused(409, f"generation: found {settings.generation}, and {what} of this run came before")
        if wrong := problems(self._started_with, settings):
            raise LiveRefused(400, "; ".join(wrong))

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LiveRefused(409, self._closed)

    def _take_effect(self, settings: LiveSettings) -> None:
        self._in_effect = settings
        self.config = applied(self._started_with, settings)
        self.last = self.config.max_steps
