"""``python -m benchmarks.agents_under_faults``: agents, sandboxes, graders, workers and orchestrators are killed.

Exit code 0; 1 when something was left of what was killed, or a failure of the machinery was trained as a score.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.agents_under_faults.deaths import bias
from benchmarks.agents_under_faults.killing import Killed, killing


def main() -> int:
    """Kill, judge, and print a table of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents_under_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="processes that are killed")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when, and of what the model says")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.05, 0.1, 0.15], help="of episodes that die")
    parser.add_argument("--steps", type=int, default=150, help="batches of 64 episodes for each share")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        killed = asyncio.run(killing(Path(folder), chosen.kills, chosen.seed)) if chosen.kills else None
        if killed is not None:
            print(_killed(killed, time.monotonic() - begun))
        print("| share that dies | episodes | lost | bias of the baseline | the dead scored 0 |\n|---|---|---|---|---|")
        for share in chosen.shares:
            found = asyncio.run(bias(Path(folder) / f"share-{share}", share, chosen.steps))
            told = " | ".join(f"{mean:+.4f} ± {half:.4f}" for mean, half in (found.trained, found.zeros))
            print(f"| {share:.0%} | {found.episodes} | {found.lost:.1%} | {told} |", flush=True)
    return 0 if killed is None or killed.well else 1


def _killed(killed: Killed, seconds: float) -> str:
    found = killed.judged
    return "\n".join(
        [
            f"{killed.kills.total()} kills in {seconds:.0f} s: {dict(sorted(killed.kills.items()))}",
            f"{killed.steps} steps, {found.trained} episodes trained; exit code {killed.exit_code}",
            f"left out, by class: {dict(sorted(found.failures.items()))}",
            f"leaked processes: {killed.leaked}",
            f"episodes trained with a reward that their diff does not deserve: {found.falsely_scored}",
            f"episodes trained twice: {found.trained_twice}",
            f"worst error of an advantage, of {found.whole_groups} groups: {found.worst_advantage_error:.1e}",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
