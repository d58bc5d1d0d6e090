"""Writes a run's folder from a seed, as the roles of a run would leave it; columns of Parquet are drawn as arrays."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.view.stories import ENVIRONMENTS, STOPS, Story
from echorl_core import jsonsafe
from echorl_core.rundir import RunDirectory, write_file
from echorl_orchestrator.records.episode_table import SCHEMA

READ = 4
"""Episodes of a step that ``episodes.jsonl`` has."""
GROUP = 8
_METRICS = ("entropy/all", "env_nll/all", "staleness/all/mean", "rate/trained_tokens_per_s", "gap/max_abs", "grad_norm")


@dataclass(frozen=True)
class Shape:
    """How large the run is."""

    steps: int
    episodes: int
    """Of a step's batch."""
    parquet: bool = True
    """All episodes are recorded (``record.episodes``), else a few of each step."""
    tokens: bool = False
    """The trainer exported what it trained, of the episodes in ``episodes.jsonl``."""


@dataclass(frozen=True)
class Drawn:
    """A step's episodes, as columns."""

    rewards: np.ndarray[Any, Any]
    advantages: np.ndarray[Any, Any]
    stops: np.ndarray[Any, Any]


class RunWriter:
    """Writes one run, step by step, so that it can grow while somebody looks at it."""

    def __init__(self, root: Path, name: str, seed: int, shape: Shape) -> None:
        self.run, self.name, self.seed, self.shape = RunDirectory(root), name, seed, shape
        identity = {"uid": f"uid-{name}-{seed}", "name": name, "created": "2026-01-01T00:00:00+00:00"}
        self._uid = identity["uid"]
        write_file(self.run.identity_file, msgspec.json.encode(identity))
        state = {"phase": "Running", "attempt": 1, "timeline": []}
        write_file(root / "state.json", msgspec.json.encode(state))
        self.run.records(1).mkdir(parents=True, exist_ok=True)

    def write(self) -> None:
        """Write every step."""
        for step in range(1, self.shape.steps + 1):
            self.step(step)

    def step(self, step: int) -> None:
        """Write one step: its line, a few episodes, and all of them as Parquet where asked for."""
        drawn = self._drawn(step)
        rows = [self._row(step, place, drawn) for place in range(min(READ, self.shape.episodes))]
        self._append("episodes.jsonl", rows)
        if self.shape.parquet:
            table = pa.table(self._columns(step, drawn), schema=SCHEMA)
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            write_file(self.run.episodes(1, step), bytes(sink.getvalue().to_pybytes()))
        if self.shape.tokens:
            self._export(step, rows)
        self._append("steps.jsonl", [self._metrics(step, drawn)])

    def _drawn(self, step: int) -> Drawn:
        dice = np.random.default_rng((self.seed, step))
        chance = 0.2 + 0.6 * (1 - math.exp(-step / max(1.0, self.shape.steps / 2)))
        rewards = (dice.random(self.shape.episodes) < chance).astype(np.float64)
        baseline = np.repeat(
            [part.mean() for part in np.array_split(rewards, math.ceil(len(rewards) / GROUP))],
            [len(part) for part in np.array_split(rewards, math.ceil(len(rewards) / GROUP))],
        )
        stops = np.array(STOPS)[dice.choice(len(STOPS), size=len(rewards), p=[0.88, 0.06, 0.04, 0.02])]
        return Drawn(rewards, rewards - baseline, stops)

    def _named(self, step: int, place: int) -> str:
        return f"a1-g{step * self.shape.episodes + place // GROUP:06d}-e{place % GROUP}"

    def _story(self, step: int, place: int, drawn: Drawn) -> Story:
        return Story(self.seed, step * self.shape.episodes + place, solved=bool(drawn.rewards[place]))

    def _row(self, step: int, place: int, drawn: Drawn) -> dict[str, Any]:
        story, episode = self._story(step, place, drawn), self._named(step, place)
        return {
            "kind": "train",
            "step": step,
            "episode": episode,
            "attempt": 1,
            "environment": ENVIRONMENTS[place % 2],
            "task_key": f"{story.noun}-{step}",
            "reward": float(drawn.rewards[place]),
            "stop": str(drawn.stops[place]),
            "truncated": str(drawn.stops[place]) == "truncated",
            "num_turns": len(story.turns),
            "sampled_tokens": story.sampled,
            "kept_tokens": story.sampled,
            "branches": 1,
            "version_low": step - 1,
            "version_high": step - 1,
            "seconds": story.seconds,
            "metrics": {"files_read": 1.0},
            "info": story.info,
            "messages": story.messages,
            **({"conversations": story.conversations} if story.sides else {}),
            "turns": story.turns,
            "group": episode.rpartition("-")[0],
            "advantage": float(drawn.advantages[place]),
            "staleness": 0,
            "in_batch": True,
            "filters": [],
            "trains": {"rl": True, "ce": True},
        }

    def _columns(self, step: int, drawn: Drawn) -> dict[str, Any]:
        count = self.shape.episodes
        stories = [self._story(step, place, drawn) for place in range(min(count, 24))]
        names = [self._named(step, place) for place in range(count)]
        told = [jsonsafe.dumps(story.messages) for story in stories]
        branches = [jsonsafe.dumps(story.conversations) if story.sides else None for story in stories]
        state = [jsonsafe.dumps(story.info) for story in stories]

        def cycled(values: list[Any]) -> list[Any]:
            return list(itertools.islice(itertools.cycle(values), count))

        known: dict[str, Any] = {
            "kind": ["train"] * count,
            "step": [step] * count,
            "attempt": [1] * count,
            "episode": names,
            "environment": cycled(list(ENVIRONMENTS)),
            "task_key": cycled([f"{story.noun}-{step}" for story in stories]),
            "group": [name.rpartition("-")[0] for name in names],
            "in_batch": [True] * count,
            "reward": drawn.rewards,
            "advantage": drawn.advantages,
            "staleness": [0] * count,
            "version_low": [step - 1] * count,
            "version_high": [step - 1] * count,
            "filters": [[]] * count,
            "trains_rl": [True] * count,
            "trains_ce": [True] * count,
            "stop": drawn.stops.tolist(),
            "truncated": drawn.stops == "truncated",
            "turns": cycled([len(story.turns) for story in stories]),
            "sampled_tokens": cycled([story.sampled for story in stories]),
            "kept_tokens": cycled([story.sampled for story in stories]),
            "environment_tokens": [80] * count,
            "branches": [1] * count,
            "branches_dropped": [0] * count,
            "branches_unused": cycled([int(story.sides) for story in stories]),
            "unattributed": [False] * count,
            "seconds": cycled([story.seconds for story in stories]),
            "state": cycled(state),
            "messages": cycled(told),
            "conversations": cycled(branches),
        }
        return {name: known.get(name, [None] * count) for name in SCHEMA.names}

    def _metrics(self, step: int, drawn: Drawn) -> dict[str, Any]:
        dice = np.random.default_rng((self.seed, step, 1))
        fell = math.exp(-step / max(1.0, self.shape.steps / 3))
        values = (0.4 + fell, 0.6 + 1.4 * fell, dice.random(), 900 + 90 * dice.random(), 0.01 * dice.random(), fell)
        noisy = {name: float(value * (1 + 0.04 * dice.normal())) for name, value in zip(_METRICS, values, strict=True)}
        seconds = {"seconds/wait_batch": 1.0 + dice.random(), "seconds/forward_backward": 4.0, "seconds/optimizer": 0.3}
        return {
            "step": step,
            "attempt": 1,
            "reward/all/mean": float(drawn.rewards.mean()),
            "batch/episodes": self.shape.episodes,
            "episodes/finished": self.shape.episodes,
            "episodes/failed": int(dice.integers(0, 3)),
            "failures/timeout": int(dice.integers(0, 2)),
            **noisy,
            **seconds,
        }

    def _export(self, step: int, rows: list[dict[str, Any]]) -> None:
        lines = []
        for place, row in enumerate(rows):
            about = {"run_uid": self._uid, "attempt": 1, "step": step, "rank": 0, "sample_id": f"{row['episode']}/0"}
            about |= {"environment": row["environment"], "reward": row["reward"]}
            story = Story(self.seed, step * self.shape.episodes + place, solved=bool(row["reward"]))
            lines += [msgspec.json.encode(one) for one in story.trained(about, row["advantage"])]
        write_file(self.run.exported_tokens(1, step, 0), b"".join(line + b"\n" for line in lines))

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        with (self.run.records(1) / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{jsonsafe.dumps({'time': '2026-01-01T00:00:00.000+00:00', **row})}\n" for row in rows)
