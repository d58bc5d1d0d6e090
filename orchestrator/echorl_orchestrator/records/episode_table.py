"""Episodes as a Parquet table: pure functions. Only the writer of episode files imports it: pyarrow takes a second."""

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from echorl_core.jsonsafe import dumps
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.records.recorder import failure_columns
from echorl_orchestrator.rollout.groups import ReadyEpisode

SCHEMA = pa.schema(
    {
        "kind": pa.string(),
        "step": pa.int64(),
        "attempt": pa.int64(),
        "episode": pa.string(),
        "member": pa.string(),
        "environment": pa.string(),
        "task_key": pa.string(),
        "group": pa.string(),
        "in_batch": pa.bool_(),
        "reward": pa.float64(),
        "rewards": pa.map_(pa.string(), pa.float64()),
        "advantage": pa.float64(),
        "staleness": pa.int64(),
        "version_low": pa.int64(),
        "version_high": pa.int64(),
        "filters": pa.list_(pa.string()),
        "trains_rl": pa.bool_(),
        "trains_ce": pa.bool_(),
        "stop": pa.string(),
        "truncated": pa.bool_(),
        "turns": pa.int64(),
        "sampled_tokens": pa.int64(),
        "environment_tokens": pa.int64(),
        "kept_tokens": pa.int64(),
        "branches": pa.int64(),
        "branches_dropped": pa.int64(),
        "branches_unused": pa.int64(),
        "unattributed": pa.bool_(),
        "seconds": pa.float64(),
        "metrics": pa.map_(pa.string(), pa.float64()),
        "state": pa.string(),
        "messages": pa.string(),
        "transcript": pa.string(),
        "conversations": pa.string(),
        "error_class": pa.string(),
        "error_kind": pa.string(),
        "error": pa.string(),
        "phase": pa.string(),
    }
)
"""``state`` (what ``stateColumns`` names), ``messages``, ``transcript`` and ``conversations`` are JSON: environments
and agents give them shape.

Null: ``member``, ``rewards`` and ``transcript`` of an episode that one policy played alone; ``conversations`` of one
that has a single branch; ``advantage`` before there is one; what was said, where it was let go; and of an eval what
only training has, from ``group`` to ``trains_ce``. The last four are null but of episodes that failed; those have no
reward.
"""


def train_episode(step: int, attempt: int, episode: ReadyEpisode, *, in_batch: bool) -> dict[str, Any]:
    """A train episode by the columns of ``SCHEMA``."""
    return {
        **_episode(episode.outcome, attempt),
        "kind": "train",
        "step": step,
        "group": episode.group,
        "in_batch": in_batch,
        "advantage": None if math.isnan(episode.advantage) else episode.advantage,
        "staleness": episode.staleness(step),
        "version_low": episode.version_low,
        "filters": list(episode.verdict.hits),
        "trains_rl": episode.verdict.rl,
        "trains_ce": episode.verdict.ce,
    }


def failed_episode(step: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    """An episode that failed while the batch of ``step`` was being filled, by the columns of ``SCHEMA``."""
    of_training = {"group": episode.group, "in_batch": False, "filters": [], "trains_rl": False, "trains_ce": False}
    return {**_failed(step, attempt, episode), "kind": "train", **of_training}


def failed_eval_episode(version: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    """An episode of an eval that failed, by the columns of ``SCHEMA``; those of training alone are left out."""
    return {**_failed(version, attempt, episode), "kind": "eval"}


def _failed(step: int, attempt: int, episode: FailedEpisode) -> dict[str, Any]:
    return {**_episode(episode.outcome, attempt), "step": step, "reward": None, **failure_columns(episode)}


def eval_episode(version: int, attempt: int, outcome: EpisodeOutcome) -> dict[str, Any]:
    """An eval episode by the columns of ``SCHEMA``; those of training alone are left out."""
    return {**_episode(outcome, attempt), "kind": "eval", "step": version, "version_low": outcome.version_low}


def _episode(outcome: EpisodeOutcome, attempt: int) -> dict[str, Any]:
    several = {
        "member": outcome.member,
        "rewards": sorted(outcome.rewards.items()),
        "transcript": dumps(outcome.transcript) if outcome.transcript else None,
    }
    return {
        **(several if outcome.member else {}),
        "attempt": attempt,
        "episode": outcome.episode,
        "environment": outcome.environment,
        "task_key": str(outcome.task_key),
        "reward": outcome.reward,
        "version_high": outcome.version_high,
        "stop": str(outcome.stop),
        "truncated": outcome.truncated,
        "turns": outcome.num_turns,
        "sampled_tokens": outcome.sampled_tokens,
        "environment_tokens": outcome.environment_tokens,
        "kept_tokens": outcome.kept_tokens,
        "branches": outcome.kept_branches,
        "branches_dropped": outcome.dropped_branches,
        "branches_unused": outcome.unused_branches,
        "unattributed": outcome.unattributed,
        "seconds": outcome.seconds,
        "metrics": sorted(outcome.metrics.items()),
        "state": dumps(outcome.info),
        "messages": dumps(outcome.messages) if outcome.messages else None,
        "conversations": dumps(outcome.conversations) if outcome.conversations else None,
    }


def parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    """The rows as one Parquet file, compressed by zstd; what a row leaves out is null.

    Raises:
        pyarrow.ArrowException, UnicodeEncodeError: a value does not fit its column.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
