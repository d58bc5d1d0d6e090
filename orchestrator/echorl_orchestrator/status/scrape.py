"""What one scrape of ``GET /metrics`` tells, put together from the parts."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from echorl_core import jsonsafe
from echorl_core.wire.goodput import Seconds, TimeState
from echorl_orchestrator.engines.engine import EngineState
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.rollout.counters import Drop
from echorl_orchestrator.status.health import Health
from echorl_orchestrator.status.metrics_registry import Reading, Series
from echorl_orchestrator.status.run_view import RunView
from echorl_orchestrator.status.volume import Volume

Values = dict[str, Series]

BY_ENVIRONMENT = {
    "reward": ("reward", "/mean"),
    "reward_std": ("reward", "/std"),
    "env_nll_nats": ("env_nll", ""),
    "echo_nll_nats": ("echo_nll", ""),
    "entropy_nats": ("entropy", ""),
    "mismatch_kl_nats": ("mismatch_kl", ""),
    "teacher_kl_nats": ("teacher_kl", ""),
    "masked_ratio": ("is_masked", ""),
}
"""First and last part of a step's column, by family; the environment stands between."""
BY_ENVIRONMENT_AND_NAME = {"solved": "solved_ratio", "filters": "filtered_ratio"}
"""Family by first part of a step's column; an environment and a name of a small set follow."""


class Scrape:
    """Reads the parts when Prometheus asks."""

    def __init__(self, view: RunView, health: Health, volume: Volume) -> None:
        self._view, self._health, self._volume = view, health, volume

    def reading(self) -> Reading:
        """Read the values of all families that Prometheus is shown."""
        view = self._view
        values: Values = {
            **self._progress(),
            **learning(view.progress.last_row),
            **evals(view.progress.last_evals),
            "evals_skipped": {(name,): count for name, count in view.evals.skipped.items()},
            **counts(view.counters.counted()),
            **self._work(),
            **times(*view.meter.counted()),
            **self._engines(),
        }
        return Reading(
            values, {f"engines_{name}": shown for name, shown in view.pool.distributions().items() if shown.buckets}
        )

    def _progress(self) -> Values:
        view = self._view
        committer, newest = view.disk.committer, view.disk.committer.newest
        loaded = view.rollout.loaded
        return _alone(
            attempt=view.identity.attempt,
            trained_step=view.step,
            sealed_step=None if loaded is None else loaded.buffer.next_step - 1,
            last_step=view.live.last,
            step_age_seconds=time.monotonic() - view.progress.last_step_at,
            committed_step=None if newest is None else newest.step,
            checkpoint_age_seconds=None if newest is None else _age(newest.committed_at),
            checkpoint_interval_steps=view.live.config.checkpoint.interval,
            uncommitted_steps=view.step - (view.disk.start_step if newest is None else newest.step),
            checkpoints_pending=len(committer.waiting),
            checkpoints_abandoned=committer.abandoned,
            evals_pending=len(view.evals.pending),
            volume_size_bytes=self._volume.size_bytes,
            volume_free_bytes=self._volume.free_bytes,
            staleness_bound_versions=view.config.batch.max_staleness,
        )

    def _work(self) -> Values:
        view, health, loaded = self._view, self._health, self._view.rollout.loaded
        return _alone(
            episodes_running=view.in_flight,
            episodes_limit=view.rollout.concurrency.limit,
            episodes_ready=None if loaded is None else len(loaded.buffer.ready),
            episodes_capacity=None if loaded is None else loaded.scheduler.capacity(),
            trained_tokens=view.throughput.trained_tokens,
            steps=view.throughput.steps,
            idle_seconds=health.idle_s,
            loop_lag_seconds=health.lag_s,
            loop_lag_max_seconds=health.max_lag_s,
            episode_files_failed=view.disk.episodes.failed_files,
            json_non_finite=jsonsafe.replaced_count(),
        )

    def _engines(self) -> Values:
        pool = self._view.pool
        served, told, views = pool.served() or (None, None), pool.metrics_snapshot(), pool.views()
        states = Counter(view.state for view in views)
        return {
            "engines": {(str(state),): states[str(state)] for state in EngineState},
            "engine_version": {(view.name,): view.version for view in views},
            **_alone(
                served_version_min=served[0],
                served_version_max=served[1],
                engines_running_requests=told["running"],
                engines_waiting_requests=told["waiting"],
                engines_kv_cache_mean_ratio=told["kv_usage_mean"],
                engines_kv_cache_max_ratio=told["kv_usage_max"],
                engines_prefix_query_tokens=told["prefix_queries_total"],
                engines_prefix_hit_tokens=told["prefix_hits_total"],
                engines_prompt_tokens=told["prompt_tokens_total"],
                engines_generation_tokens=told["generation_tokens_total"],
                engines_draft_tokens=told["draft_tokens_total"],
                engines_accepted_draft_tokens=told["accepted_draft_tokens_total"],
                engines_preemptions=told["preemptions_total"],
                engines_requests=told["requests_total"],
            ),
        }


def learning(row: Mapping[str, Any]) -> Values:
    """From the newest line of steps.jsonl."""
    families = (*BY_ENVIRONMENT, *BY_ENVIRONMENT_AND_NAME.values())
    by_family: dict[str, dict[tuple[str, ...], float | None]] = {family: {} for family in families}
    for column, value in row.items():
        parts = column.split("/")
        if len(parts) == 3 and parts[0] in BY_ENVIRONMENT_AND_NAME:
            by_family[BY_ENVIRONMENT_AND_NAME[parts[0]]][parts[1], parts[2]] = value
        for family, (first, last) in BY_ENVIRONMENT.items():
            if len(parts) > 1 and column == f"{first}/{parts[1]}{last}":
                by_family[family][(parts[1],)] = value
    trained = row.get("tokens/trained")
    return {
        **by_family,
        **_alone(
            echo_tokens_ratio=row["echo_tokens"] / trained if trained and row.get("echo_tokens") is not None else None,
            rl_episodes_ratio=row.get("batch/rl_share"),
            logprob_gap_nats=row.get("gap/max_abs"),
            staleness_max_versions=row.get("staleness/all/max"),
            staleness_mean_versions=row.get("staleness/all/mean"),
        ),
    }


def evals(rows: Mapping[str, Mapping[str, Any]]) -> Values:
    """From the newest line of evals.jsonl of each environment."""
    return {
        "eval_reward": {(name,): row.get("reward") for name, row in rows.items()},
        "eval_env_nll_nats": {(name,): row.get("env_nll") for name, row in rows.items()},
        "eval_step": {(name,): row.get("step") for name, row in rows.items()},
        "eval_pass_ratio": {
            (name, column.removeprefix("pass@")): value
            for name, row in rows.items()
            for column, value in row.items()
            if column.startswith("pass@") and "/" not in column
        },
    }


def counts(totals: Mapping[str, int]) -> Values:
    """From the counters of episodes. Every label's value is there from the start: a rate needs a first value of 0."""
    return {
        "episodes": _by(totals, "episodes", ("finished", "failed")),
        "episode_failures": _by(totals, "failures", ErrorKind),
        "episodes_dropped": _by(totals, "dropped", Drop),
        "groups": _by(totals, "groups", ("closed", "partial", "dropped")),
        **_alone(branches_dropped=totals.get("branches/dropped", 0), sampled_tokens=totals.get("tokens/sampled", 0)),
    }


def times(seconds: Seconds, tokens: Mapping[TimeState, int]) -> Values:
    """Where the time of GPUs went."""
    decided = [state for state in TimeState if state is not TimeState.UNDECIDED]
    return {
        "gpu_seconds": {(role, state): states[state] for role, states in seconds.items() for state in decided},
        "undecided_gpu_seconds": {(role,): states[TimeState.UNDECIDED] for role, states in seconds.items()},
        "untrained_tokens": {(cause,): count for cause, count in tokens.items()},
    }


def _by(totals: Mapping[str, int], prefix: str, labels: Iterable[str]) -> Series:
    return {(str(label),): totals.get(f"{prefix}/{label}", 0) for label in labels}


def _alone(**values: float | None) -> Values:
    return {name: {(): value} for name, value in values.items()}


def _age(committed_at: str) -> float:
    return max(0.0, time.time() - datetime.fromisoformat(committed_at).timestamp())
