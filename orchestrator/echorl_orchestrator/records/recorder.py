"""What a run leaves to read: JSON lines under ``records/attempt_N/``, appended by one thread at a time.

steps.jsonl      one row per step: facts of the batch and the trainer's report
episodes.jsonl   a few episodes per step and eval, with their messages
evals.jsonl      one row per eval, played or skipped
updates.jsonl    one row per engine and weight update
"""

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from echorl_core.attempts import prepared_attempts
from echorl_core.jsonsafe import dumps
from echorl_core.rundir import RunDirectory
from echorl_core.wire.reports import StepReport
from echorl_orchestrator.disk_room import DiskRoom
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import class_of
from echorl_orchestrator.rollout.groups import ReadyEpisode

STEPS, EPISODES, EVALS, UPDATES = "steps.jsonl", "episodes.jsonl", "evals.jsonl", "updates.jsonl"
EPISODES_A_STEP = 4
_LONGEST_ERROR = 4000
"""Characters of an error's text that a record keeps: its beginning."""


class Recorder:
    """Appends rows in the order of asking; a row is in the file when ``append`` returns."""

    def __init__(self, folder: Path, room: DiskRoom | None = None) -> None:
        """``room``: where rows wait for it; None: for themselves alone."""
        self._folder, self._room = folder, room or DiskRoom()
        self._lock = asyncio.Lock()
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def open(self) -> None:
        """Make the folder, and cut off a row that a killed process left half-written. Blocking."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in (STEPS, EPISODES, EVALS, UPDATES):
            path = self._folder / name
            if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
                with path.open("r+b") as file:
                    file.truncate(data.rfind(b"\n") + 1)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Read the rows that the file holds. Blocking."""
        return read_rows(self._folder / name)

    async def append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, each with the time; they wait for room on the volume."""
        async with self._lock:
            await self._room.written(name, lambda: self._write(name, rows))

    def later(self, name: str, row: dict[str, Any]) -> None:
        """Add a row soon: ``run`` does, or ``close``."""
        self._queue.put_nowait((name, row))

    async def run(self) -> None:
        """Write what ``later`` was given, until cancelled."""
        while True:
            name, row = await self._queue.get()
            await asyncio.shield(self.append(name, [row]))

    async def close(self) -> None:
        """Write what ``later`` was given and ``run`` has not written."""
        while not self._queue.empty():
            name, row = self._queue.get_nowait()
            await self.append(name, [row])

    def _write(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = "".join(dumps({"time": now, **row}) + "\n" for row in rows)
        with (self._folder / name).open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            left = memoryview(lines.encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # Half a row would stand before whatever is written next.
                file.truncate(end)
                raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of records; a last line without its end is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1] if line]


class RecordedEvals(NamedTuple):
    """Environment and version of every eval that was recorded.

    Played ones count while the policy that they measured is part of the run: what lies beyond the step that a later
    attempt resumed from is trained again, and that version is another policy.
    """

    played: set[tuple[str, int]]
    skipped: set[tuple[str, int]]


def was_played(row: Mapping[str, Any]) -> bool:
    """Whether a line of evals.jsonl holds scores; else it says why the eval was ``skipped``."""
    return "skipped" not in row


def recorded_evals(run: RunDirectory) -> RecordedEvals:
    """What evals.jsonl of all attempts tells. Blocking.

    Raises:
        Refused: what an attempt was prepared with is unreadable.
    """
    starts = [(attempt, prepared.resume_step) for attempt, prepared in prepared_attempts(run)]
    recorded = RecordedEvals(set(), set())
    for attempt, folder in run.recorded_attempts():
        last = min((start for later, start in starts if later > attempt), default=math.inf)
        for row in read_rows(folder / EVALS):
            place = (row["environment"], row["step"])
            if not was_played(row):
                recorded.skipped.add(place)
            elif row["step"] <= last:
                recorded.played.add(place)
    return recorded


def step_row(
    attempt: int, report: StepReport, facts: Mapping[str, Any], throughput: Mapping[str, Any]
) -> dict[str, Any]:
    """One line of steps.jsonl: what the batch was, how time went, what the trainer says."""
    seconds = report.seconds.get("step") or 0.0
    return {
        "step": report.step,
        "attempt": attempt,
        **facts,
        **throughput,
        "tokens/trained": report.trained_tokens,
        "tokens/packed": report.packed_tokens,
        "rate/trained_tokens_per_s": report.trained_tokens / seconds if seconds > 0 else None,
        **{f"seconds/{name}": value for name, value in report.seconds.items()},
        "gap/tokens": report.gap.tokens,
        "gap/max_abs": report.gap.max_abs,
        "gap/mean_abs": report.gap.mean_abs,
        "gap/over_tolerance": report.gap.over_tolerance,
        **report.metrics,
    }


def chosen(episodes: Sequence[ReadyEpisode], count: int = EPISODES_A_STEP) -> list[ReadyEpisode]:
    """A few episodes to read: spread evenly over the batch in the order of reward, worst and best among them."""
    ordered = sorted(episodes, key=lambda episode: (episode.outcome.reward or 0.0, episode.outcome.episode))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]


def train_row(step: int, attempt: int, episode: ReadyEpisode, *, in_batch: bool = True) -> dict[str, Any]:
    """One line of episodes.jsonl for an episode of a batch, or for one that filters kept out of it."""
    return {
        "kind": "train",
        "step": step,
        **_episode(episode.outcome, attempt),
        "group": episode.group,
        "advantage": None if math.isnan(episode.advantage) else episode.advantage,
        "staleness": episode.staleness(step),
        "in_batch": in_batch,
        "filters": list(episode.verdict.hits),
        "trains": {"rl": episode.verdict.rl, "ce": episode.verdict.ce},
    }


def failed_row(step: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    """One line of episodes.jsonl for an episode that failed while the batch of ``step`` was being filled."""
    of_training = {"group": episode.group, "in_batch": False}
    return {"kind": "train", **_failed(step, attempt, episode), **of_training}


def failed_eval_row(version: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    """One line of episodes.jsonl for an episode of an eval that failed."""
    return {"kind": "eval", **_failed(version, attempt, episode)}


def _failed(step: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    own = {"reward": None, "advantage": None, **failure_columns(episode)}
    return {"step": step, **_episode(episode.outcome, attempt), **own}


def failure_columns(episode: FailedEpisode) -> dict[str, Any]:
    """Why an episode failed, by the names that all records have for it."""
    return {
        "error_class": str(class_of(episode.kind)),
        "error_kind": str(episode.kind),
        "error": episode.error[:_LONGEST_ERROR],
        "phase": episode.outcome.phase,
    }


def eval_summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """An eval's row as the run's state shows it: without its examples."""
    return {name: value for name, value in row.items() if name not in {"examples", "attempt", "environment", "time"}}


def eval_row(version: int, attempt: int, outcome: EpisodeOutcome) -> dict[str, Any]:
    """One line of episodes.jsonl for an eval episode."""
    return {"kind": "eval", "step": version, **_episode(outcome, attempt), "advantage": None}


def _episode(outcome: EpisodeOutcome, attempt: int) -> dict[str, Any]:
    several = {"member": outcome.member, "rewards": outcome.rewards, "transcript": outcome.transcript}
    return {
        "episode": outcome.episode,
        **(several if outcome.member else {}),
        "attempt": attempt,
        "environment": outcome.environment,
        "task_key": outcome.task_key,
        "reward": outcome.reward,
        "stop": outcome.stop,
        "truncated": outcome.truncated,
        "num_turns": outcome.num_turns,
        "sampled_tokens": outcome.sampled_tokens,
        "kept_tokens": outcome.kept_tokens,
        "branches": outcome.kept_branches,
        "version_low": outcome.version_low,
        "version_high": outcome.version_high,
        "seconds": outcome.seconds,
        "metrics": outcome.metrics,
        "info": outcome.info,
        "messages": outcome.messages,
        **({"conversations": outcome.conversations} if outcome.conversations else {}),
        "turns": outcome.turns,
    }
