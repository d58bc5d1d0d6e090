"""What plays train episodes: the deck of tasks, the scheduler, and the buffer of ready episodes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from echorl_core.config import OrchestratorConfig
from echorl_orchestrator.failures import BadInputError, FailureLimit
from echorl_orchestrator.rollout.counters import Counters
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.ready_buffer import ReadyBuffer
from echorl_orchestrator.rollout.scheduler import Horizon, Scheduler
from echorl_orchestrator.tasks.task_deck import TaskDeck


@dataclass(frozen=True)
class Rollout:
    """What plays train episodes."""

    deck: TaskDeck
    buffer: ReadyBuffer
    scheduler: Scheduler


async def build_rollout(
    config: OrchestratorConfig,
    identity: RunIdentity,
    disk: Disk,
    *,
    player: EpisodePlayer,
    pool: EnginePool,
    counters: Counters,
    failures: FailureLimit,
    on_progress: Callable[[], None],
) -> Rollout:
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
    return Rollout(deck, buffer, scheduler)


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
