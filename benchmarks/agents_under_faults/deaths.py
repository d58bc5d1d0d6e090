"""What deaths of episodes do to baselines: an environment that loses a share of them, and a run that plays it.

A task is solved with a known probability p, so an unbiased baseline is p in the mean. Of each group the bias is taken
of the baseline that the run trained with, and of the one that it would have had with the dead scored 0.
"""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq

from echorl_core.rundir import RunDirectory
from echorl_orchestrator.types import Environment, InfrastructureError, Limits, RunnerResult
from echorl_testing.engines.fake_engine import FakeEngine
from echorl_testing.orchestrator.orchestrator_run import Run, environment

_TASKS, _GROUP = 4000, 8
_ROOTS = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "tests" / "support")]


@dataclass(frozen=True)
class Bias:
    """Mean over groups of the baseline less the probability that it estimates, with half of the 95 % interval."""

    episodes: int
    """That were trained."""
    lost: float
    """Share of all episodes of these groups that died."""
    trained: tuple[float, float]
    zeros: tuple[float, float]
    """Had the dead been scored 0."""


class _Runner:
    def __init__(self, share: float) -> None:
        # An episode that is lost is played once more: it is lost for good when it is lost twice.
        self._each = math.sqrt(share)

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """Ask the model once, and die or be scored."""
        body = {"model": model, "messages": [{"role": "user", "content": "go"}]}
        chance = random.Random(session)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {session}"}) as client,
            client.post(f"{base_url}/chat/completions", json=body) as answer,
        ):
            answer.raise_for_status()
        if chance.random() < self._each:
            raise InfrastructureError("the sandbox was evicted")
        return RunnerResult(float(chance.random() < task["solved"]), {}, {})


def dying(share: float) -> Environment:
    """Tasks that are solved in a share of their own, and episodes of which ``share`` are lost for good."""
    return Environment([{"key": number, "solved": _solved(number)} for number in range(_TASKS)], runner=_Runner(share))


def _solved(task: int) -> float:
    return random.Random(task).uniform(0.2, 0.8)


async def bias(folder: Path, share: float, steps: int) -> Bias:
    """Play ``steps`` batches of 64 episodes of which ``share`` die, in ``folder``."""
    async with FakeEngine() as engine:
        run = Run(folder, engine)
        dead = environment(
            "dead",
            type="import:benchmarks.agents_under_faults.deaths:dying",
            args={"share": share},
            max_infrastructure_share=1.0,
        )
        run.configure(
            max_steps=steps,
            batch={"group_size": _GROUP, "batch_size": 64, "max_staleness": 8, "seq_len": 1024, "num_ranks": 1},
            train=[dead],
            evals=[],
            record_episodes=True,
            record=False,
            python_path=_ROOTS,
            max_consecutive_failures=10_000,
        )
        training = asyncio.create_task(run.trainer(ranks=1).run())
        async with run.orchestrator() as orchestrator:
            await training
            if code := await orchestrator.wait():
                raise RuntimeError(f"the orchestrator ended with {code}: {run.log.read_text()[-2000:]}")
    return _judged(run.directory)


def _judged(run: RunDirectory) -> Bias:
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(run.root.glob("records/attempt_*/episodes/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            groups[row["group"]].append(row)
    whole = [group for group in groups.values() if len(group) == _GROUP]
    survivors = [[row for row in group if row["error_class"] is None] for group in whole]
    trained, zeros = [], []
    for alive in filter(None, survivors):
        solved = _solved(int(alive[0]["task_key"]))
        trained.append(alive[0]["reward"] - alive[0]["advantage"] - solved)
        zeros.append(sum(row["reward"] for row in alive) / _GROUP - solved)
    episodes = sum(map(len, survivors))
    return Bias(episodes, 1 - episodes / (_GROUP * len(whole)), _interval(trained), _interval(zeros))


def _interval(found: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(found) / len(found)
    spread = math.fsum((one - mean) ** 2 for one in found) / (len(found) - 1)
    return mean, 1.96 * math.sqrt(spread / len(found))
