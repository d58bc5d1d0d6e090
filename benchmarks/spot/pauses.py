"""When a run made its steps, and for how long it made none that was new."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from echorl_core.rundir import RunDirectory
from echorl_orchestrator.records.recorder import STEPS, read_rows


def new_steps(run: RunDirectory) -> list[float]:
    """When each step was reported that none before was as high as, in seconds since the epoch."""
    rows = [row for file in run.root.glob(f"records/attempt_*/{STEPS}") for row in read_rows(file)]
    made, highest = [], 0
    for at, step in sorted((datetime.fromisoformat(row["time"]).timestamp(), row["step"]) for row in rows):
        if step > highest:
            made.append(at)
            highest = step
    return made


def longest_pause(made: Sequence[float], begin: float, end: float) -> float:
    """Seconds between two of these times, or ``begin`` and the next one, of which the earlier is before ``end``."""
    times = [begin, *(at for at in made if at > begin)]
    return max((after - before for before, after in pairwise(times) if before < end), default=0.0)


def pauses_after(losses: Sequence[tuple[str, float]], made: Sequence[float], window_s: float) -> dict[str, list[float]]:
    """The longest pause after each loss until the next one, ``window_s`` at the most, by what was lost."""
    found: dict[str, list[float]] = defaultdict(list)
    for number, (label, at) in enumerate(losses):
        after = min((other for _, other in losses[number + 1 :]), default=float("inf"))
        found[label].append(longest_pause(made, at, min(after, at + window_s)))
    return found
