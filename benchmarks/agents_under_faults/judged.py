"""What a run's records say of what it trained, held against what the agents really did."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from echorl_core.rundir import RunDirectory
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.seeded import bug_of


@dataclass
class Judged:
    """Counts over all batches."""

    trained: int = 0
    """Episodes that are in batches."""
    trained_twice: int = 0
    falsely_scored: int = 0
    """Trained with another reward than their diff deserves: as a failure of the machinery would have it."""
    whole_groups: int = 0
    """Those of which every episode's end is recorded."""
    worst_advantage_error: float = 0.0
    """Of whole groups: against the reward less the mean of the survivors', in float64."""
    failures: Counter[str] = field(default_factory=Counter)
    """Episodes that were left out, by class."""


def judged(run: RunDirectory, rows: list[Row], group_size: int) -> Judged:
    """Read all episodes of a run that plays seeded repositories."""
    right = {row.key: f"+{bug_of(row).right}\n" for row in rows}
    found = Judged()
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    seen: set[str] = set()
    for path in sorted(run.root.glob("records/attempt_*/episodes/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            groups[row["group"]].append(row)
            if row["error_class"] is not None:
                found.failures[row["error_class"]] += 1
            elif row["in_batch"]:
                found.trained += 1
                found.trained_twice += row["episode"] in seen
                seen.add(row["episode"])
                deserved = float(right[row["task_key"]] in json.loads(row["state"])["diff"])
                found.falsely_scored += row["reward"] != deserved
    for group in groups.values():
        survivors = [row for row in group if row["error_class"] is None]
        if len({row["episode"] for row in group}) == group_size and survivors:
            found.whole_groups += 1
            mean = sum(row["reward"] for row in survivors) / len(survivors)
            errors = [abs(row["advantage"] - (row["reward"] - mean)) for row in survivors]
            found.worst_advantage_error = max(found.worst_advantage_error, *errors)
    return found
