"""The work of a run: seal batch after batch, see each trained, evaluated and committed, and finish."""

import asyncio

import structlog
from msgspec.structs import replace

from echorl_orchestrator.attempt.fixed_settings import fixed_settings
from echorl_orchestrator.batches.batch_metrics import SinceLastBatch, batch_columns
from echorl_orchestrator.batches.rae_baselines import RunBaselines
from echorl_orchestrator.batches.sealing import Content, Place, SavedState, compose, extend, files, seal_of
from echorl_orchestrator.control.run_parts import RunParts
from echorl_orchestrator.rollout.groups import ReadyEpisode, units_of
from echorl_orchestrator.rollout.ready_buffer import matched
from echorl_orchestrator.rollout.rollout import LoadedRollout

log = structlog.get_logger()

LITTLE_TO_TRAIN = 0.1
"""Share of a batch's episodes; see ``little_to_train``."""


class Training:
    """Drives the batches of one attempt."""

    def __init__(self, parts: RunParts) -> None:
        self._config, self._identity, self._disk, self._live = parts.config, parts.identity, parts.disk, parts.live
        self._evals, self._counters = parts.evals, parts.counters
        self._health, self._board, self._meter = parts.health, parts.board, parts.meter
        self._journal = parts.journal
        self._history = self._disk.history
        self._baselines = RunBaselines.resumed(self._config, self._disk.state)
        self._leaving, self._left = False, asyncio.Event()
        self._play: LoadedRollout | None = None
        self._echo = frozenset(environment.name for environment in self._config.train if environment.echo is not None)

    async def run(self, play: LoadedRollout) -> None:
        """Until the last step is trained, committed and evaluated.

        The last checkpoint is saved only when the ranks are told of the end if the run was cut short behind a batch
        that asked for none (``Disk.unsaved``).

        Raises:
            RunFailure: nothing to train, or the last checkpoint could not be saved.
        """
        self._play = play
        self._live.call_on_change(play.buffer.wake)
        self._disk.desk.on_moved = play.buffer.wake
        self._adopt(play)
        done = False
        while not done:
            if self._leaving:
                await self._seal_ready(play)
                self._left.set()
                await asyncio.Event().wait()  # for the role's end
            if self._live.adopt():
                self._adopt(play)
                await self._board.refresh()
            if play.buffer.next_step <= self._live.last:
                await self._next_batch(play)
            else:
                done = await self._completed()
        play.buffer.discard()

    async def leave(self) -> None:
        """Seal a batch whose episodes are ready, though it is not due, and no other one after it."""
        play = self._play
        if play is None or play.buffer.next_step > self._live.last:
            return
        self._leaving = True
        play.buffer.wake()
        await self._left.wait()

    async def _seal_ready(self, play: LoadedRollout) -> None:
        step = play.buffer.next_step
        if step > min(self._live.last, self._disk.desk.given + 1) or (episodes := play.buffer.take()) is None:
            return
        await self._seal_batch(play, step, episodes)

    def _adopt(self, play: LoadedRollout) -> None:
        """Hand the settings in effect to those who act by them. What is sealed is trained, whatever they say."""
        live = self._live
        live.hold_last(max(play.buffer.next_step - 1, self._disk.start_step))
        play.scheduler.adopt(live.config.train, live.last)
        self._evals.adopt(live.config.evals, live.last)
        self._disk.committer.adopt(live.config.checkpoint)

    async def _completed(self) -> bool:
        """Wait for the end of the last step; False: new settings came before."""
        ended = asyncio.create_task(self._last_things(self._live.last))
        changed = asyncio.create_task(self._live.changed())
        try:
            await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
            if self._live.waiting:
                return False
            self._live.close(f"the run is over: it ended at step {self._live.last}")
            return True
        finally:
            for task in (ended, changed):
                task.cancel()
            await asyncio.gather(ended, changed, return_exceptions=True)

    async def _last_things(self, last: int) -> None:
        await self._disk.desk.done(last)
        if last > self._disk.start_step and not self._disk.unsaved(last):
            self._disk.check_saved(last, await self._disk.committer.settled(last))
        await self._evals.finished()

    async def _next_batch(self, play: LoadedRollout) -> None:
        """Seal one batch as the trainer is about to ask for it; or none, if new settings came before."""
        step = play.buffer.next_step
        episodes = await play.buffer.batch_unless(lambda: self._live.waiting or self._leaving, self._disk.desk.due_in_s)
        if episodes is not None:
            await self._seal_batch(play, step, episodes)

    async def _seal_batch(self, play: LoadedRollout, step: int, episodes: list[ReadyEpisode]) -> None:
        chosen = asyncio.get_running_loop().time()
        # No await since the episodes were taken: what is saved is the state as of this batch.
        state = self._state(play, step)
        units = units_of(episodes)
        baselines = self._baselines.shipped(units)
        state = replace(state, baselines=baselines.state())
        content = await asyncio.to_thread(compose, units, self._config.batch, self._echo, step=step)
        if content is None:
            log.warning("nothing to train in a batch", step=step, episodes=len(episodes), filters=matched(episodes))
            play.buffer.give_up(episodes)
            return
        _warn(step, units, content)
        since = SinceLastBatch(
            self._counters.new_window(),
            play.buffer.take_filtered(),
            list(dict.fromkeys(rule.name for env in self._config.train for rule in self._config.batch.of(env).filters)),
            play.deck.pools(),
        )
        await self._seal(step, units, content, state, since)
        await self._meter.sealed(step, {episode.outcome.episode for episode in episodes})
        if self._journal is not None:
            await self._journal.sealed(state.deck.is_settled)
        self._baselines = baselines
        play.buffer.sealed()
        play.scheduler.cancel_hopeless()
        play.scheduler.wake()
        self._disk.desk.pace.sealed(asyncio.get_running_loop().time() - chosen)
        await self._disk.desk.sealed()
        self._health.beat()
        await self._board.refresh()
        await self._disk.episodes.sealed(step, units)

    async def _seal(
        self,
        step: int,
        episodes: list[ReadyEpisode],
        content: Content,
        state: SavedState,
        since: SinceLastBatch,
    ) -> None:
        place = Place(
            identity=self._identity,
            step=step,
            checkpoint=step % self._live.config.checkpoint.interval == 0 or step == self._live.last,
            last=step == self._live.last,
        )
        seal = seal_of(place, content, batch_columns(episodes, content, step, since))
        extended = extend(state, content)

        def write() -> None:
            self._disk.store.write(seal, files(place, content, seal, extended))

        await self._disk.room.written(f"batch {step}", write)
        self._history = extended.history
        log.info("sealed", step=step, episodes=len(episodes), tokens=content.trained_tokens, digest=content.digest[:12])

    def _state(self, play: LoadedRollout, step: int) -> SavedState:
        return SavedState(
            fixed=fixed_settings(self._config),
            run_uid=self._identity.uid,
            attempt=self._identity.attempt,
            step=step,
            deck=play.deck.state(),
            groups=play.scheduler.groups_started,
            history=self._history,
            totals=dict(self._counters.totals),
        )


def little_to_train(trainable: int, episodes: int) -> bool:
    """Whether so few of a batch's episodes train that a warning is due: at most a tenth."""
    return trainable <= LITTLE_TO_TRAIN * episodes


def _warn(step: int, episodes: list[ReadyEpisode], content: Content) -> None:
    if little_to_train(content.trainable_episodes, len(episodes)):
        counts = {"trainable": content.trainable_episodes, "of": len(episodes), "filters": matched(episodes)}
        log.warning("little to train in a batch", step=step, **counts)
    elif content.rl_share is not None and content.rl_share <= LITTLE_TO_TRAIN:
        # ECHO alone keeps such a run going: nothing else would tell that rewards teach it nothing.
        log.warning("rewards teach little in a batch", step=step, share=content.rl_share, filters=matched(episodes))
