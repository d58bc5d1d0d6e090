"""Episodes on their way into records: a few a step and eval as JSON lines, and all of them as Parquet where asked for.

    records/attempt_N/episodes.jsonl                            a few to read
    records/attempt_N/episodes/step_000012.parquet              every episode of the batch, those filtered before it,
                                                                and those that failed meanwhile
    records/attempt_N/eval_episodes/step_000012.NAME.parquet    every episode of an eval

Parquet files are written beside the work: no batch waits for one, and one that cannot be written is counted.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from echorl_core.rundir import RunDirectory, write_file
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import class_of
from echorl_orchestrator.records.recorder import (
    EPISODES,
    EPISODES_A_STEP,
    Recorder,
    chosen,
    failed_eval_row,
    failed_row,
    train_row,
)
from echorl_orchestrator.rollout.groups import ReadyEpisode

log = structlog.get_logger()

MAX_WAITING = 2
"""Steps that wait for the disk; each holds the messages of its episodes in memory."""
MAX_FILTERED = 4096
"""Filtered episodes that are held with their messages until a batch is sealed; later ones are held without."""
MAX_FAILED = 256
"""Failed episodes of a step, or of an eval, that are recorded; later ones are only counted, as all are."""


@dataclass(frozen=True)
class _Step:
    number: int
    episodes: Sequence[ReadyEpisode]
    filtered: Sequence[ReadyEpisode]
    failed: Sequence[FailedEpisode]


class EpisodeFiles:
    """One Parquet file a step, and one an eval."""

    def __init__(self, run: RunDirectory, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._queue: asyncio.Queue[_Step] = asyncio.Queue(MAX_WAITING)
        self._filtered: list[ReadyEpisode] = []
        self._failed: dict[int, list[FailedEpisode]] = {}
        """By the step whose batch was being filled."""
        self.unwritten = 0
        """Files that could not be written."""

    def filtered(self, episode: ReadyEpisode) -> None:
        """Hold an episode that filters kept out of batches, for the next file."""
        whole = len(self._filtered) < MAX_FILTERED
        self._filtered.append(_light(episode, messages=whole))

    def failed(self, step: int, episode: FailedEpisode) -> None:
        """Hold an episode that failed while the batch of ``step`` was being filled, for that step's file."""
        held = self._failed.setdefault(step, [])
        if len(held) < MAX_FAILED:
            held.append(replace(episode, outcome=replace(episode.outcome, samples=[], turns=[], units=[])))

    def sealed(self, step: int, episodes: Sequence[ReadyEpisode]) -> None:
        """Have a step's file written soon. Never waits: where the disk is too far behind, the file is left out."""
        filtered, self._filtered = self._filtered, []
        failed = self._failed.pop(step, [])
        try:
            self._queue.put_nowait(_Step(step, [_light(episode) for episode in episodes], filtered, failed))
        except asyncio.QueueFull:
            self._fail(step, f"{MAX_WAITING} steps already wait for the disk")

    async def evaluated(
        self, version: int, environment: str, outcomes: Sequence[EpisodeOutcome], failed: Sequence[FailedEpisode]
    ) -> None:
        """An eval's file is written when this returns, or counted as failed.

        Nothing but the environment's next eval waits for it, and so no more than one eval of each is held in memory.
        """
        try:
            await asyncio.to_thread(self._write_eval, version, environment, outcomes, failed[:MAX_FAILED])
        except Exception as error:  # as in _write
            self._fail(version, f"eval {environment}: {type(error).__name__}: {error}")

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.shield(self._write(await self._queue.get()))

    async def close(self) -> None:
        """Write what waits, and what failed or was filtered while a batch was being filled that nobody sealed."""
        while not self._queue.empty():
            await self._write(self._queue.get_nowait())
        for step, failed in sorted(self._failed.items()):
            filtered, self._filtered = self._filtered, []
            await self._write(_Step(step, [], filtered, failed))

    async def _write(self, step: _Step) -> None:
        try:
            await asyncio.to_thread(self._write_file, step)
        except Exception as error:  # whatever it is: a record is no reason to stop a run
            self._fail(step.number, f"{type(error).__name__}: {error}")

    def _write_file(self, step: _Step) -> None:
        from echorl_orchestrator.records.episode_table import failed_episode, parquet, train_episode  # noqa: PLC0415 - see there

        rows = [train_episode(step.number, self._attempt, episode, in_batch=True) for episode in step.episodes]
        rows += [train_episode(step.number, self._attempt, episode, in_batch=False) for episode in step.filtered]
        rows += [failed_episode(step.number, self._attempt, episode) for episode in step.failed]
        write_file(self._run.episodes(self._attempt, step.number), parquet(rows), within=self._run.root)

    def _write_eval(
        self, version: int, environment: str, outcomes: Sequence[EpisodeOutcome], failed: Sequence[FailedEpisode]
    ) -> None:
        from echorl_orchestrator.records.episode_table import (  # noqa: PLC0415 - see there
            eval_episode,
            failed_eval_episode,
            parquet,
        )

        rows = [eval_episode(version, self._attempt, outcome) for outcome in outcomes]
        rows += [failed_eval_episode(version, self._attempt, episode) for episode in failed]
        write_file(self._run.eval_episodes(self._attempt, version, environment), parquet(rows), within=self._run.root)

    def _fail(self, step: int, reason: str) -> None:
        if not self.unwritten:
            log.warning("a file of episodes is not written; further ones are only counted", step=step, reason=reason)
        self.unwritten += 1


class EpisodeRecords:
    """Takes every train episode: of a batch, kept out of one by filters, or failed; and those of evals."""

    def __init__(self, recorder: Recorder, files: EpisodeFiles | None, attempt: int) -> None:
        """``files``: None where only a few episodes are recorded."""
        self._recorder, self._files, self._attempt = recorder, files, attempt
        self._step = 0
        self._told: Counter[str] = Counter()
        """Lines of ``_step`` in episodes.jsonl of those that are in no batch, by why."""

    @property
    def failed_files(self) -> int:
        """Parquet files that were not written."""
        return 0 if self._files is None else self._files.unwritten

    def filtered(self, step: int, episode: ReadyEpisode) -> None:
        """An episode that filters kept out of the batch of ``step``, whole."""
        if self._is_told(step, "filtered"):
            self._recorder.later(EPISODES, train_row(step, self._attempt, episode, in_batch=False))
        if self._files is not None:
            self._files.filtered(episode)

    def failed(self, step: int, episode: FailedEpisode) -> None:
        """An episode that failed while the batch of ``step`` was being filled."""
        if self._is_told(step, class_of(episode.kind)):
            self._recorder.later(EPISODES, failed_row(step, self._attempt, episode))
        if self._files is not None:
            self._files.failed(step, episode)

    def _is_told(self, step: int, why: str) -> bool:
        """Whether one more episode that is in no batch has a line, for it is among the first few of its step."""
        if step != self._step:
            self._step, self._told = step, Counter()
        self._told[why] += 1
        return self._told[why] <= EPISODES_A_STEP

    async def sealed(self, step: int, episodes: Sequence[ReadyEpisode]) -> None:
        """The batch of ``step`` is sealed: a few of its episodes are in ``episodes.jsonl`` when this returns."""
        if self._files is not None:
            self._files.sealed(step, episodes)
        await self._recorder.append(EPISODES, [train_row(step, self._attempt, episode) for episode in chosen(episodes)])

    async def evaluated(
        self,
        version: int,
        environment: str,
        outcomes: Sequence[EpisodeOutcome],
        failed: Sequence[FailedEpisode] = (),
    ) -> None:
        """The eval that ``version`` made due is done; what is to be written of it is when this returns."""
        told: Counter[str] = Counter()
        few: list[FailedEpisode] = []
        for episode in failed:
            told[why := class_of(episode.kind)] += 1
            if told[why] <= EPISODES_A_STEP:
                few.append(episode)
        if few:
            await self._recorder.append(EPISODES, [failed_eval_row(version, self._attempt, one) for one in few])
        if self._files is not None and (outcomes or failed):
            await self._files.evaluated(version, environment, outcomes, failed)

    async def run(self) -> None:
        """Write files until cancelled."""
        await (asyncio.Event().wait() if self._files is None else self._files.run())

    async def close(self) -> None:
        """Write what waits."""
        if self._files is not None:
            await self._files.close()


def _light(episode: ReadyEpisode, *, messages: bool = True) -> ReadyEpisode:
    """Without tokens, and without what was said where there are too many."""
    outcome = replace(episode.outcome, samples=[], turns=[])
    return replace(
        episode, outcome=outcome if messages else replace(outcome, messages=[], conversations=[], transcript=[])
    )
