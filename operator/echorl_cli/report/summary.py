"""``report.json``: a run in a few figures that scripts can compare."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from echorl_cli.records import Row, RunRecords


def column(rows: Sequence[Row], name: str) -> list[float | None]:
    """One value per row; None where the row has none."""
    return [value if isinstance(value := row.get(name), (int, float)) else None for row in rows]


def present(values: Sequence[float | None]) -> list[float]:
    """The values that are there."""
    return [value for value in values if value is not None]


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there; None of none."""
    found = present(values)
    return fmean(found) if found else None


def max_or_none(values: Sequence[float | None]) -> float | None:
    """Largest value that is there; None of none."""
    return max(present(values), default=None)


def summary(records: RunRecords) -> dict[str, Any]:
    """Figures of a whole run. Means of the first and last five steps are over steps that have the value."""
    steps = records.steps
    rewards, nll = column(steps, "reward/all/mean"), column(steps, "env_nll/all")
    return {
        "steps": len(steps),
        "reward_first5": mean_or_none(rewards[:5]),
        "reward_last5": mean_or_none(rewards[-5:]),
        "env_nll_first5": mean_or_none(nll[:5]),
        "env_nll_last5": mean_or_none(nll[-5:]),
        "eval": _evals(records.evals),
        "evals_skipped": [f"{row.get('environment')} at step {row['step']}" for row in records.skipped_evals],
        "policy_versions": sorted({int(version) for version in present(column(records.updates, "version"))}),
        "max_staleness": max_or_none(column(steps, "staleness/all/max")),
        "max_logprob_gap": max_or_none(column(steps, "gap/max_abs")),
        "logprob_gap_tokens": sum(int(tokens) for tokens in present(column(steps, "gap/tokens"))),
        "logprob_gap_over_tolerance": sum(int(tokens) for tokens in present(column(steps, "gap/over_tolerance"))),
        "sampled_tokens": sum(int(tokens) for tokens in present(column(steps, "tokens/sampled"))),
        "trained_tokens": sum(int(tokens) for tokens in present(column(steps, "tokens/trained"))),
        "max_pause_s": max_or_none(column(records.updates, "pause_s")),
        "restarts": records.supervisor.get("restarts", 0),
        "setup_s": records.supervisor.get("setup_s"),
        "setup_cpu_s": records.supervisor.get("setup_cpu_s"),
        "wall_s": records.supervisor.get("wall_s"),
        "cpu_s": records.supervisor.get("cpu_s"),
        "baselines": records.baselines,
        "exports": records.exports,
    }


def _evals(rows: Sequence[Row]) -> dict[str, dict[str, list[float | None]]]:
    """Per eval environment: columns step, reward, env_nll, episodes, errors."""
    found: dict[str, dict[str, list[float | None]]] = {}
    names = ("step", "reward", "env_nll", "episodes", "errors")
    for row in rows:
        table = found.setdefault(str(row.get("environment")), {name: [] for name in names})
        for name in names:
            table[name].append(column([row], name)[0])
    return found
