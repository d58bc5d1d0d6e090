"""What becomes of long episodes when batches are sealed as soon as they are full, and when the trainer is about to ask.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.late_sealing

The scheduler, the ready buffer and the trainer's pace are real, in virtual time; a trainer that takes ten seconds a
step and engines without a queue are imagined. How long an episode takes is lognormal by task (median half a step), with
a tenth more or less of its own. Each line: ``maxStaleness`` and ``oversampling``; when batches are sealed; by length of
episodes in steps, their share in what was trained over their share in what was started (1: no bias); episodes thrown
away over those started; seconds a step that the trainer waited; mean and highest staleness.
"""

import argparse
import asyncio
import logging
import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import structlog

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.attempt.trainer_pace import TrainerPace
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_testing.orchestrator.scripted_player import ScriptedPlayer, batch_config, environment, outcome
from echorl_testing.orchestrator.scripted_scheduler import Rig
from echorl_testing.virtual_time import run_in_virtual_time

STEP_S, PUBLISH_S, SEAL_S = 10.0, 0.5, 0.2
BATCH, GROUP = 32, 4
BINS = (0.0, 0.5, 1.0, 2.0, math.inf)
"""Lengths of episodes, in steps."""


@dataclass
class TimedPlayer(ScriptedPlayer):
    """Episodes take as long as their task says."""

    draw: random.Random = field(default_factory=random.Random)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of every episode that was started, by name."""
    of_group: dict[str, float] = field(default_factory=dict)

    async def play(
        self, environment: EnvironmentConfig, task: dict[str, Any], *, episode: str, group: str, seed: int, attempt: int
    ) -> EpisodeOutcome:
        """The episode, of the version that was served at its start."""
        version = self.version
        of_task = self.of_group.setdefault(group, self.draw.lognormvariate(math.log(STEP_S / 2), 0.75))
        self.seconds[episode] = of_task * self.draw.uniform(0.9, 1.1)
        await asyncio.sleep(self.seconds[episode])
        return outcome(episode, version=version, reward=float(episode[-1] == "0"))


@dataclass
class Result:
    """What one life came to."""

    bias: list[float]
    """By ``BINS``."""
    lost: float
    waited_s: float
    mean_staleness: float
    highest: int


class Life:
    """One run of ``steps`` steps."""

    def __init__(self, staleness: int, oversampling: float, seed: int, *, late: bool, steps: int) -> None:
        self._draw, self._late, self._steps = random.Random(seed), late, steps
        self._player = TimedPlayer(num=100_000, version=0, draw=random.Random(seed + 1))
        config = batch_config(batch_size=BATCH, group_size=GROUP, max_staleness=staleness, oversampling=oversampling)
        self._rig = Rig(config, self._player, [environment(max_concurrent=10_000)], max_steps=steps)
        self._pace, self._given, self._sealed = TrainerPace(), 0, asyncio.Condition()
        self._batches: dict[int, list[ReadyEpisode]] = {}
        self._waited_s = 0.0

    async def live(self) -> Result:
        """Seal and train every step."""
        async with self._rig.running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._seal())
            tasks.create_task(self._train())
        return self._result()

    def _due_in_s(self, step: int) -> float:
        if not self._late:
            return 0.0
        return math.inf if step > self._given + 1 else self._pace.due_in_s(step)

    async def _seal(self) -> None:
        buffer = self._rig.buffer
        while (step := buffer.next_step) <= self._steps:
            episodes = await buffer.batch_unless(lambda: False, self._due_in_s)
            assert episodes is not None  # noqa: S101 - nothing interrupts
            await asyncio.sleep(SEAL_S)
            buffer.sealed()
            self._pace.sealed(SEAL_S)
            async with self._sealed:
                self._batches[step] = episodes
                self._sealed.notify_all()
            self._rig.scheduler.cancel_hopeless()
            self._rig.scheduler.wake()

    async def _train(self) -> None:
        clock = asyncio.get_running_loop().time
        for step in range(1, self._steps + 1):
            self._pace.asked(step)
            self._rig.buffer.wake()
            asked = clock()
            async with self._sealed:
                await self._sealed.wait_for(lambda step=step: step in self._batches)  # type: ignore[misc]
            self._waited_s += clock() - asked
            self._given = step
            self._pace.given(step)
            self._rig.buffer.wake()
            await asyncio.sleep(STEP_S * self._draw.uniform(0.9, 1.1))
            asyncio.get_running_loop().call_later(PUBLISH_S, self._rig.update, step)

    def _result(self) -> Result:
        seconds, trained = self._player.seconds, [one for batch in self._batches.values() for one in batch]
        ages = [one.staleness(step) for step, batch in self._batches.items() for one in batch]

        def share(names: list[str], low: float, high: float) -> float:
            return sum(low * STEP_S <= seconds[name] < high * STEP_S for name in names) / len(names)

        started, used = list(seconds), [one.outcome.episode for one in trained]
        return Result(
            bias=[share(used, *edges) / share(started, *edges) for edges in pairwise(BINS)],
            lost=1 - len(trained) / len(seconds),
            waited_s=self._waited_s / self._steps,
            mean_staleness=sum(ages) / len(ages),
            highest=max(ages),
        )


def measure(staleness: int, oversampling: float, *, late: bool, steps: int, seeds: range) -> Result:
    """Means over the lives of ``seeds``; of staleness the highest."""
    lives = [run_in_virtual_time(_live(staleness, oversampling, seed, late=late, steps=steps)) for seed in seeds]
    return Result(
        bias=[fmean(values) for values in zip(*(life.bias for life in lives), strict=True)],
        lost=fmean(life.lost for life in lives),
        waited_s=fmean(life.waited_s for life in lives),
        mean_staleness=fmean(life.mean_staleness for life in lives),
        highest=max(life.highest for life in lives),
    )


async def _live(staleness: int, oversampling: float, seed: int, *, late: bool, steps: int) -> Result:
    return await Life(staleness, oversampling, seed, late=late, steps=steps).live()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for staleness in (1, 2, 4):
        for oversampling in (1.0, 1.5):
            for late in (False, True):
                found = measure(staleness, oversampling, late=late, steps=asked.steps, seeds=range(asked.seeds))
                by_length = zip(pairwise(BINS), found.bias, strict=True)
                print(
                    f"maxStaleness {staleness}  oversampling {oversampling:.1f}  {'late' if late else 'full':4s}  "
                    f"{'  '.join(f'{low:g}-{high:g}: {bias:.2f}' for (low, high), bias in by_length)}  "
                    f"lost {found.lost:.1%}  "
                    f"waited {found.waited_s:.2f} s  staleness {found.mean_staleness:.2f}, {found.highest}"
                )


if __name__ == "__main__":
    main()
