"""Evaluation, overlapped with training: at the start, at interval steps, and after the last step.

Episodes of the first ``num_examples`` tasks, in fixed order, ``group_size`` each, are played with the eval's own
sampling against the engines as they are then (a row says which versions sampled). Episodes that failed are left out of
scores and counted. An eval that was due and whose version is gone leaves a row that says so.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import structlog

from echorl_core.config import EnvironmentConfig, EvalConfig
from echorl_orchestrator.engines.generation import TokenGenerator
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.evals.eval_scores import EnvNll, Example, fresh_observations, group_of, row, skipped_row
from echorl_orchestrator.failures import EpisodeError, ErrorKind, FailureLimit
from echorl_orchestrator.rollout.groups import as_failed, failure_of, usable_scores
from echorl_orchestrator.rollout.player import Player
from echorl_orchestrator.tasks.task_deck import seed_of

log = structlog.get_logger()

SCORED_AT_ONCE = 8
"""Sequences of one eval whose logprobs are asked for at the same time."""


@dataclass(frozen=True)
class EvalHorizon:
    """Which evals are due, which of them were recorded before, and what their episodes are identified by."""

    attempt: int
    seed: int
    max_steps: int
    start_step: int = 0
    """The first version that can be reached."""
    played: AbstractSet[tuple[str, int]] = frozenset()
    """Environment and version of evals that were recorded before; they are not played again."""
    skipped: AbstractSet[tuple[str, int]] = frozenset()
    """Environment and version of evals that were recorded as skipped; they are played if their version comes again."""


def due(config: EvalConfig, version: int, max_steps: int) -> bool:
    """Whether an eval is played when the trainer reaches ``version``."""
    if version == max_steps or (version == 0 and config.at_start):
        return True
    return version > 0 and version % config.interval == 0


class Evals:
    """Plays evals one version after the other per environment, environments side by side."""

    def __init__(
        self,
        configs: list[EvalConfig],
        horizon: EvalHorizon,
        *,
        player: Player,
        generator: TokenGenerator,
        wait_served: Callable[[int], Awaitable[None]],
        on_row: Callable[[dict[str, Any], list[EpisodeOutcome], list[FailedEpisode]], Awaitable[None]],
        failures: FailureLimit,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the queues, and skip what was due below the first version and no attempt has recorded.

        Args:
            configs: of all evals.
            horizon: which are due.
            player: of their episodes.
            generator: scores what environments wrote.
            wait_served: returns when the engines hold at least this version.
            on_row: gets the row of each eval that is finished, with its episodes and those that failed, or that is
                skipped, without any.
            failures: counts failures in a row, those of training too.
            on_progress: called whenever an episode has ended.
        """
        self._configs, self._horizon, self._player, self._generator = configs, horizon, player, generator
        self._wait_served, self._on_row = wait_served, on_row
        self._failures, self._on_progress = failures, on_progress
        self._done, self._recorded_skips = set(horizon.played), set(horizon.skipped)
        self._reached = horizon.start_step - 1
        self._unfinished: Counter[str] = Counter()
        played = [config.environment for config in configs]
        self._queues: dict[str, asyncio.Queue[int]] = {environment.name: asyncio.Queue() for environment in played}
        self._slots = {environment.name: asyncio.Semaphore(environment.max_concurrent) for environment in played}
        self._skipped_rows: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.in_flight = 0
        """Eval episodes that are being played or scored."""
        self.skipped: Counter[str] = Counter(dict.fromkeys(self._queues, 0))
        """Evals that this process has skipped, by environment."""
        reason = f"no attempt has recorded it, and the run resumed from step {horizon.start_step}"
        for config in configs:
            self._skip(config, range(horizon.start_step), reason)

    def adopt(self, configs: list[EvalConfig], max_steps: int) -> None:
        """Intervals, sampling and last step as they are from here on; the same environments.

        The eval after the last step is queued now if the trainer is there already.
        """
        self._configs, self._horizon = configs, replace(self._horizon, max_steps=max_steps)
        if self._reached == max_steps:
            for config in configs:
                self._queue(config.environment.name, max_steps)

    def reached(self, version: int) -> None:
        """The trainer holds ``version``: queue the evals that are due.

        Versions may be passed over (an orchestrator that was down hears of the newest alone); the latest eval that
        was due on the way is then played with the version that is there, those before it are skipped.
        """
        for config in self._configs:
            passed = [at for at in range(self._reached + 1, version + 1) if due(config, at, self._horizon.max_steps)]
            reason = f"the trainer was at version {version} when the orchestrator heard of it"
            self._skip(config, passed[:-1], reason)
            if passed:
                self._queue(config.environment.name, passed[-1])
        self._reached = max(self._reached, version)

    def _skip(self, config: EvalConfig, versions: Iterable[int], reason: str) -> None:
        """Tell of evals that were due at ``versions`` and never recorded: no later version stands in for them."""
        name, recorded = config.environment.name, self._done | self._recorded_skips
        lost = [at for at in versions if due(config, at, self._horizon.max_steps) and (name, at) not in recorded]
        if not lost:
            return
        log.warning("evals were due and are not played", environment=name, versions=lost, reason=reason)
        self.skipped[name] += len(lost)
        self._recorded_skips.update((name, version) for version in lost)
        for version in lost:
            self._skipped_rows.put_nowait(skipped_row(name, version, reason) | {"attempt": self._horizon.attempt})

    def _queue(self, name: str, version: int) -> None:
        if (name, version) not in self._done:
            self._done.add((name, version))
            self._unfinished[name] += 1
            self._queues[name].put_nowait(version)

    @property
    def pending(self) -> list[str]:
        """Environments with an eval that is queued or being played."""
        return [name for name, count in self._unfinished.items() if count]

    async def finished(self) -> None:
        """Wait until every queued eval is done, and every skipped one recorded."""
        await self._skipped_rows.join()
        for queue in self._queues.values():
            await queue.join()

    async def run(self) -> None:
        """Play queued evals, and tell of skipped ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_skipped())
            for name in self._queues:
                tasks.create_task(self._serve(name))
            await asyncio.Event().wait()

    async def _tell_skipped(self) -> None:
        while True:
            await self._on_row(await self._skipped_rows.get(), [], [])
            self._skipped_rows.task_done()

    async def _serve(self, name: str) -> None:
        queue = self._queues[name]
        while True:
            version = await queue.get()
            await self._wait_served(version)
            config = next(config for config in self._configs if config.environment.name == name)
            await self._evaluate(config, version)
            self._unfinished[name] -= 1
            queue.task_done()

    async def _evaluate(self, config: EvalConfig, version: int) -> None:
        started = time.monotonic()
        environment = config.environment
        count = min(config.num_examples, await self._player.num_tasks(environment))
        if count < config.num_examples:
            log.warning("eval has fewer tasks than asked for", environment=environment.name, found=count)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._example(config, version, index)) for index in range(count)]
        examples = [task.result() for task in tasks]
        line = row(environment.name, version, examples, group_size=config.group_size)
        line |= {"attempt": self._horizon.attempt, "seconds": time.monotonic() - started}
        log.info("eval", environment=environment.name, version=version, reward=line["reward"], errors=line["errors"])
        failed = [episode for example in examples for episode in example.failed]
        await self._on_row(line, [outcome for example in examples for outcome in example.survivors], failed)

    async def _example(self, config: EvalConfig, version: int, index: int) -> Example:
        try:
            task = await self._player.task(config.environment, index)
        except EpisodeError as error:
            self._failures.note(error.kind, error.message)
            return Example(index, errors=[error.kind] * config.group_size)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._episode(config, version, index, task, number))
                for number in range(config.group_size)
            ]
        results = [playing.result() for playing in tasks]
        example = Example(index, key=task.get("key", index), nll=EnvNll.total([nll for _, nll in results]))
        for outcome, _ in results:
            if (kind := failure_of(outcome)) is None:
                example.survivors.append(outcome)
            else:
                example.lose(as_failed(outcome, group_of(outcome), kind))
        await self._score(config.environment, task, example)
        return example

    async def _episode(
        self, config: EvalConfig, version: int, index: int, task: dict[str, Any], number: int
    ) -> tuple[EpisodeOutcome, EnvNll]:
        environment = config.environment
        group = f"a{self._horizon.attempt}-eval-{environment.name}-v{version}-t{index}"
        async with self._slots[environment.name], self._player.room(environment):
            self.in_flight += 1
            try:
                outcome = await self._player.play(
                    environment,
                    task,
                    episode=f"{group}-e{number}",
                    group=group,
                    seed=seed_of(self._horizon.seed, "eval", environment.name, index) % 2**31,
                    attempt=self._horizon.attempt,
                )
                kind = failure_of(outcome)
                nll = await self._env_nll(outcome) if kind is None else EnvNll()
            finally:
                self.in_flight -= 1
        self._on_progress()
        self._failures.note(kind, outcome.error)
        return outcome, nll

    async def _env_nll(self, outcome: EpisodeOutcome) -> EnvNll:
        """Negative log-likelihood of what the environment wrote, each token once though branches share it."""
        nll = EnvNll()
        for sample, positions in fresh_observations(outcome.samples):
            try:
                logprobs = await self._generator.prompt_logprobs(token_ids=sample.token_ids.tolist())
            except EpisodeError as error:
                log.warning("eval sequence could not be scored", sample=sample.sample_id, error=str(error))
                nll.errors += 1
                continue
            nll.sum -= sum(logprobs[position - 1] for position in positions)
            nll.tokens += len(positions)
        return nll

    async def _score(self, environment: EnvironmentConfig, task: dict[str, Any], example: Example) -> None:
        """Let a group-scored environment score the example; it then falls as a whole if one episode failed."""
        if not example.survivors:
            return
        try:
            scores = await self._player.score_group(environment, task, example.survivors)
        except EpisodeError as error:
            example.fall(error.kind, error.message)
            return
        if scores is None:
            example.drop_unscored()
            return
        if example.errors or not usable_scores(scores, len(example.survivors)):
            why = "other episodes of it failed" if example.errors else f"score_group returned {scores}"
            example.fall(ErrorKind.ENV, why)
            return
        for outcome, score in zip(example.survivors, scores, strict=True):
            outcome.reward = float(score)
