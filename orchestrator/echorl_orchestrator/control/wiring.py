"""Makes the parts of an attempt and hands them to each other; nothing runs yet."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.run_token import sandboxes_key
from echorl_orchestrator.accounting.meter import Meter
from echorl_orchestrator.attempt.disk import Disk, read_disk
from echorl_orchestrator.attempt.live_settings import AttemptSettings
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.control.trainer_reports import TrainerReports
from echorl_orchestrator.disk_room import DiskRoom
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.episodes.player import build_player
from echorl_orchestrator.evals.evaluation import EvalHorizon, Evals
from echorl_orchestrator.failures import ErrorKind, FailureLimit
from echorl_orchestrator.monitors.feed import Feed
from echorl_orchestrator.monitors.monitors import Monitors, launches
from echorl_orchestrator.records.recorder import UPDATES
from echorl_orchestrator.rollout.concurrency import Concurrency
from echorl_orchestrator.rollout.counters import Counters, EpisodeLedger
from echorl_orchestrator.rollout.infrastructure_losses import InfrastructureLosses
from echorl_orchestrator.rollout.rollout import Rollout, RolloutStart
from echorl_orchestrator.sandboxes.ledger import SandboxLedger
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Metrics
from echorl_orchestrator.status.progress import RunEnd, RunProgress
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.scrape import Scrape
from echorl_orchestrator.status.state_board import StateBoard
from echorl_orchestrator.status.throughput import Throughput
from echorl_orchestrator.status.volume import Volume


@dataclass(frozen=True)
class Secrets:
    """What the role was given through its environment, and environments' workers must not inherit."""

    token: str
    """The token of the run's own admin routes."""
    teacher: str | None = None
    """The teacher's key; None where it asks for none."""
    wandb: str | None = None
    """The key of Weights & Biases."""
    seats: Mapping[str, str] = field(default_factory=dict)
    """Keys of endpoints that play members, by ``key_variable``."""


async def assemble(
    live: AttemptSettings, identity: RunIdentity, secrets: Secrets, room: DiskRoom
) -> tuple[RunParts, TrainerReports]:
    """The parts of an attempt whose live settings are loaded, and who takes its reports.

    Parts that call each other do so through the functions below; nobody calls them before all parts are there.

    Raises:
        Damage: what the attempt resumes from is not what was committed.
        BadInputError: the attempt was not prepared, or the model cannot be used.
    """
    config = live.config

    def state_changed() -> None:
        board.soon()

    def busy() -> bool:
        return view.in_flight > 0

    def engine_updated(record: dict[str, Any]) -> None:
        metrics.engine_updated(record)
        disk.recorder.later(UPDATES, record)
        rollout.wake()
        board.soon()

    def trained() -> int:
        return view.step

    async def wait_served(version: int) -> None:
        # Engines may need a restart on the way; what takes longer than this is a failure that must be seen.
        await pool.wait_served(version, 3 * config.update_deadline_s)

    async def evaluated(row: dict[str, Any], outcomes: list[EpisodeOutcome], failed: list[FailedEpisode]) -> None:
        await reports.evaluated(row, outcomes, failed)

    def tried_again(outcome: EpisodeOutcome, kind: ErrorKind) -> None:
        counters.failed(outcome, kind)

    disk = await asyncio.to_thread(read_disk, config, identity, room, state_changed)
    room.on_change = state_changed
    journal = await asyncio.to_thread(_journal, config, identity, disk)
    meter = await asyncio.to_thread(
        Meter.opened,
        disk.run,
        identity.attempt,
        ranks=config.batch.num_ranks,
        gpus_per_engine=config.engines.gpus,
        kept_tokens=0 if journal is None else journal.tokens,
    )
    if journal is not None:
        journal.on_dropped = meter.not_kept
    pool = EnginePool(config, identity, secrets.token, on_update=engine_updated, meter=meter, journal=journal)
    in_pods = config.sandboxes is not None and config.sandboxes.provider == "pod"
    sandboxes = SandboxLedger()
    player = build_player(
        config,
        identity,
        pool,
        secrets.teacher,
        seat_keys=secrets.seats,
        sandboxes_key=sandboxes_key(secrets.token) if in_pods else None,
        sandboxes=sandboxes,
        on_retry=tried_again,
    )
    counters = Counters(None if disk.state is None else disk.state.totals, meter.decided)
    failures = FailureLimit(config.max_consecutive_failures)
    losses = InfrastructureLosses({env.name: env.max_infrastructure_share for env in config.train})
    health = Health(longest_silence_s=_longest_silence_s(config), busy=busy)
    rollout = Rollout(
        config,
        identity.attempt,
        RolloutStart() if disk.state is None else RolloutStart(disk.next_step, disk.state.groups, disk.state.deck),
        player=player,
        version=pool.version_for_dispatch,
        trained=trained,
        ledger=EpisodeLedger(counters, failures, losses, health.beat),
        concurrency=Concurrency(pool.metrics_snapshot),
        journal=journal,
        on_filtered=disk.episodes.filtered,
        on_failed=disk.episodes.failed,
    )
    evals = Evals(
        config.evals,
        EvalHorizon(
            identity.attempt,
            config.seed,
            config.max_steps,
            start_step=disk.start_step,
            played=disk.evals.played,
            skipped=disk.evals.skipped,
        ),
        player=player,
        generator=pool,
        wait_served=wait_served,
        on_row=evaluated,
        failures=failures,
        on_progress=health.beat,
    )
    throughput = Throughput(counters, health)
    progress, end = RunProgress(disk.last_row, disk.last_evals), RunEnd()
    view = RunView(
        config=config,
        identity=identity,
        disk=disk,
        pool=pool,
        evals=evals,
        counters=counters,
        throughput=throughput,
        live=live,
        rollout=rollout,
        sandboxes=sandboxes,
        progress=progress,
        end=end,
        meter=meter,
    )
    board, volume = StateBoard(view.state), Volume(disk.run)
    metrics = Metrics(Scrape(view, health, volume).reading)
    parts = RunParts(
        **vars(view),
        player=player,
        health=health,
        board=board,
        monitors=Monitors([Feed(launch) for launch in launches(config, identity, secrets.wandb)]),
        volume=volume,
        metrics=metrics,
        journal=journal,
    )
    reports = TrainerReports(parts)
    return parts, reports


def _journal(config: OrchestratorConfig, identity: RunIdentity, disk: Disk) -> TurnJournal | None:
    """The turn journal, if there is to be one. Blocking."""
    if not config.turn_journal:
        return None
    state = disk.state

    def settled(environment: str, ordinal: int) -> bool:
        return state is not None and state.deck.is_settled(environment, ordinal)

    return TurnJournal.opened(disk.run, identity, settled)


def _longest_silence_s(config: OrchestratorConfig) -> float:
    """How long no episode may end while some are in flight: the slowest with all its retries, and an update."""
    played = [*config.train, *(evaluation.environment for evaluation in config.evals)]
    slowest = max(((1 + env.max_retries) * env.episode_timeout_s for env in played), default=0.0)
    return slowest + config.update_deadline_s
