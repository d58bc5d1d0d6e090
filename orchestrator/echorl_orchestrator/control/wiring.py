"""Makes the orchestrator's parts and hands them to each other; nothing runs yet."""

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_core.checkpoints import NO_HISTORY
from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.attempt.committer import Committer
from echorl_orchestrator.attempt.trainer_desk import TrainerDesk
from echorl_orchestrator.batches.batch_store import BatchStore, starting_state
from echorl_orchestrator.batches.sealing import SavedState
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.records.episode_records import EpisodeFiles, EpisodeRecords
from echorl_orchestrator.records.recorder import (
    EVALS,
    STEPS,
    RecordedEvals,
    Recorder,
    eval_summary,
    recorded_evals,
    was_played,
)
from echorl_orchestrator.rollout.counters import Counters, FailureLimit
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.ready_buffer import ReadyBuffer
from echorl_orchestrator.rollout.scheduler import Horizon, Scheduler
from echorl_orchestrator.tasks.task_deck import TaskDeck


@dataclass(frozen=True)
class Disk:
    """What the run directory says at the start of the process."""

    run: RunDirectory
    store: BatchStore
    committer: Committer
    desk: TrainerDesk
    recorder: Recorder
    episodes: EpisodeRecords
    state: SavedState | None
    """As of the newest sealed batch or checkpoint; None on a fresh run."""
    start_step: int
    """That the attempt resumed from."""
    last_row: dict[str, Any]
    """Of this attempt's steps; empty if there is none."""
    last_evals: dict[str, dict[str, Any]]
    """Of this attempt, by environment."""
    evals: RecordedEvals
    """Of all attempts."""

    @property
    def next_step(self) -> int:
        """The batch to seal next."""
        return 1 if self.state is None else self.state.step + 1

    @property
    def history(self) -> str:
        """Chain over the batches sealed so far."""
        return NO_HISTORY if self.state is None else self.state.history


def read_disk(config: OrchestratorConfig, identity: RunIdentity, on_commit: Callable[[], None]) -> Disk:
    """Find out where the attempt stands. Blocking.

    Raises:
        Damage: what the attempt resumes from is not what was committed.
        BadInputError: the attempt was not prepared.
    """
    run = RunDirectory(Path(config.run_dir))
    store = BatchStore(run, identity, record=config.record)
    store.load()
    start_step, state = starting_state(run, identity, store)
    committer = Committer(
        run,
        identity,
        store,
        config.checkpoint,
        num_ranks=config.batch.num_ranks,
        part_deadline_s=config.part_deadline_s,
        on_change=on_commit,
    )
    committer.load(start_step)
    desk = TrainerDesk(
        store, num_ranks=config.batch.num_ranks, start_step=start_step, attempt_folder=run.attempt(identity.attempt)
    )
    desk.load()
    recorder = Recorder(run.records(identity.attempt))
    recorder.open()
    files = EpisodeFiles(run, identity.attempt) if config.record_episodes else None
    rows = recorder.rows(STEPS)
    if rows:
        desk.reported = max(row["step"] for row in rows)
    return Disk(
        run=run,
        store=store,
        committer=committer,
        desk=desk,
        recorder=recorder,
        episodes=EpisodeRecords(recorder, files, identity.attempt),
        state=state,
        start_step=start_step,
        last_row=rows[-1] if rows else {},
        last_evals={row["environment"]: eval_summary(row) for row in recorder.rows(EVALS) if was_played(row)},
        evals=recorded_evals(run),
    )


@dataclass(frozen=True)
class Play:
    """What plays train episodes."""

    deck: TaskDeck
    buffer: ReadyBuffer
    scheduler: Scheduler


async def build_play(
    config: OrchestratorConfig,
    identity: RunIdentity,
    disk: Disk,
    *,
    player: EpisodePlayer,
    pool: EnginePool,
    counters: Counters,
    failures: FailureLimit,
    on_progress: Callable[[], None],
) -> Play:
    """Cursor, collector and scheduler, where the saved state left them; the player has started.

    Raises:
        BadInputError: an environment has no tasks, or no weight is above 0.
    """
    lengths = {one.name: await player.num_tasks(one) for one in config.train}
    try:
        deck = TaskDeck(config.train, lengths, config.seed, None if disk.state is None else disk.state.deck)
    except ValueError as error:
        raise BadInputError(str(error)) from error
    buffer = ReadyBuffer(
        config.batch, deck=deck, counters=counters, next_step=disk.next_step, max_empty_batches=config.max_empty_batches
    )
    scheduler = Scheduler(
        config.batch,
        config.train,
        player=player,
        deck=deck,
        buffer=buffer,
        # What no policy samples can be made ready for as many batches ahead as episodes may be old.
        version=pool.version_for_dispatch if MODES[config.batch.mode].versions else lambda: buffer.next_step - 1,
        horizon=Horizon(identity.attempt, config.seed, config.max_steps),
        groups_started=0 if disk.state is None else disk.state.groups,
        counters=counters,
        failures=failures,
        on_progress=on_progress,
        vocab_size=vocab_size(config),
    )
    return Play(deck, buffer, scheduler)


def vocab_size(config: OrchestratorConfig) -> int | None:
    """Of the model, if a filter asks for it.

    Raises:
        BadInputError: config.json does not tell.
    """
    if all(rule.type != "gibberish" for one in config.train for rule in config.batch.of(one).filters):
        return None
    path = Path(config.model.path) / "config.json"
    found = json.loads(path.read_text()).get("vocab_size")
    if type(found) is not int or found < 1:
        raise BadInputError(f"filter gibberish: {path}: found vocab_size {found!r}, accepted is a number from 1")
    return found


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything expensive is started; callers wait until somebody accepts.

    Raises:
        BadInputError: the port is taken, or the address is none of this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen(256)
    except OSError as error:
        found.close()
        reason = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
        raise BadInputError(f"orchestrator: port {port} on {host} {reason}; accepted is a free one") from error
    return found


async def end(
    *parts: EnginePool | EpisodePlayer | EpisodeRecords | Monitors | Recorder, deadline_s: float = 10.0
) -> None:
    """Close parts one after the other; one that hangs does not keep the role alive."""
    for part in parts:
        try:
            async with asyncio.timeout(deadline_s):
                await part.close()
        except TimeoutError:
            continue
