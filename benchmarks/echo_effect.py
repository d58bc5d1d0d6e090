"""ECHO in miniature: what the environment's own tokens do for a tiny model, over seeds, with confidence intervals.

    .venv/bin/python -m benchmarks.echo_effect --seeds 0 1 2 3 4 --out runs/echo-effect

Every run is the quickstart (docs/performance.md) from its seed's one warm start, but for the weights of its terms:

rl              rewards alone
echo-ALPHA      rewards, and tool outputs at ALPHA
env-only        tool outputs alone (rlWeight 0)
warnings-only   rewards, and the harness's warnings alone at the quickstart's alpha

A run whose row is there already is not run again, so a stopped sweep goes on. ``--table`` only reads rows. Intervals
are 95 % of Student's t over seeds; differences are taken within a seed. A run that ends early, since its policy has
become one that nothing can be learned from, is counted and stands apart from the means.

On a host with GPUs several runs go side by side, each on one of them:

    .venv/bin/python -m benchmarks.echo_effect --jobs 24 --gpus 0 1 2 3 --out runs/echo-effect
"""

import argparse
import json
import math
import os
import queue
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.quickstart import train, warm_start
from echorl_core.names import ExitCode

ALPHA = 0.0035
SWEEP = (0.001, 0.0035, 0.01, 0.03, 0.1, 0.2)
WINDOW = 5
"""Steps that a reward is a mean over."""
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95 % quantiles of Student's t, by degrees of freedom."""
COLUMNS = {
    "reward_last5": "reward, last 5 steps",
    "held_out_last": "held-out reward",
    "nll_change": "held-out environment NLL, change",
    "steps_to_near": "steps to 90 % of RL's best",
    "steps_to_best": "steps to RL's best",
}

Row = dict[str, Any]


def variants() -> Mapping[str, tuple[str, list[str]]]:
    """Of each: the quickstart that it is, and what differs."""
    echo, found = "environments.train[0].echo", {"rl": ("rl-only", list[str]())}
    for alpha in SWEEP:
        found[f"echo-{alpha:g}"] = ("echo", [f"{echo}.tool.alpha={alpha}"])
    found["env-only"] = ("echo", ["algorithm.rlWeight=0"])
    found["warnings-only"] = ("rl-only", [f"{echo}.warning.alpha={ALPHA}"])
    return found


def measured(row: Row, steps: Sequence[Mapping[str, Any]]) -> Row:
    """A run's row with its reward of every step, and the relative change of the environment's NLL."""
    rewards = [float(step["reward/all/mean"]) for step in steps]
    change = row["held_out_nll_last"] / row["held_out_nll_first"] - 1.0
    return {**row, "rewards": rewards, "nll_change": change}


def windows(rewards: Sequence[float]) -> list[float]:
    """Mean reward of each ``WINDOW`` steps that follow each other."""
    return [math.fsum(rewards[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(rewards) + 1)]


def steps_to(rewards: Sequence[float], bar: float) -> int | None:
    """The first step at which the mean of the last ``WINDOW`` reaches ``bar``; None: it never does."""
    return next((index + WINDOW for index, mean in enumerate(windows(rewards)) if mean >= bar), None)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (infinite for one value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    return mean, T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def table(rows: Sequence[Row]) -> str:
    """Markdown: each variant over its seeds, and its difference to rewards alone within a seed."""
    most = max((row["steps"] for row in rows), default=0)
    whole = [row for row in rows if row["steps"] == most]
    by_seed = {(row["variant"], row["seed"]): row for row in whole}
    lines = [f"| | runs | {' | '.join(COLUMNS.values())} |", f"|{'---|' * (len(COLUMNS) + 2)}"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in whole if row["variant"] == variant]
        early = sorted(row["steps"] for row in rows if row["variant"] == variant and row["steps"] < most)
        runs = (
            f"{len(own)} whole, {len(early)} ended after step {', '.join(map(str, early))}" if early else f"{len(own)}"
        )
        for row in own:
            base = by_seed.get(("rl", row["seed"]))
            best = math.inf if base is None else max(windows(base["rewards"]))
            row["steps_to_near"] = steps_to(row["rewards"], 0.9 * best)
            row["steps_to_best"] = steps_to(row["rewards"], best)
        cells = [_cell(column, own, by_seed) for column in COLUMNS]
        lines.append(f"| {variant} | {runs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(column: str, own: Sequence[Row], by_seed: Mapping[tuple[str, int], Row]) -> str:
    known = [row for row in own if row[column] is not None]
    text = f"{len(known)} of {len(own)} reach it" if len(known) < len(own) else ""
    if not known:
        return text
    mean, half = interval([float(row[column]) for row in known])
    text = f"{mean:.3g} ± {half:.2g}" + (f" ({text})" if text else "")
    pairs = [(row, by_seed.get(("rl", row["seed"]))) for row in known]
    differences = [
        float(row[column]) - float(base[column]) for row, base in pairs if base and base.get(column) is not None
    ]
    if known[0]["variant"] == "rl" or not differences:
        return text
    mean, half = interval(differences)
    return f"{text}; {mean:+.2g} ± {half:.2g}"


def one(variant: str, seed: int, out: Path, settings: Sequence[str], gpu: str | None) -> Row:
    """One run of the sweep, anew: what an earlier try left is removed. Its row is not written yet.

    Raises:
        subprocess.CalledProcessError: it failed; ``log.txt`` in its folder says why.
    """
    folder = out / f"{variant}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kind, own = variants()[variant]
    environ = dict(os.environ)
    if gpu is not None:
        environ["CUDA_VISIBLE_DEVICES"] = gpu
        own = [*own, "trainer.gpusPerReplica=1", "inference.gpusPerReplica=1"]
    codes = (0, ExitCode.NOTHING_TO_TRAIN)
    row = train(kind, seed, folder, out / f"model-{seed}", [*own, *settings], environ=environ, accepted=codes)
    records = sorted((folder / "run/records").glob("attempt_*/steps.jsonl"))
    steps = [json.loads(line) for file in records for line in file.read_text().splitlines()]
    return {"variant": variant, **measured(row, steps)}


def sweep(options: argparse.Namespace, file: Path) -> list[Row]:
    """Run what has no row yet, ``options.jobs`` at once; returns all rows."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    there = {(row["variant"], row["seed"]) for row in rows}
    # Seed by seed, so that a sweep that was stopped has whole seeds to compare.
    wanted = [(variant, seed) for seed in options.seeds for variant in options.variants]
    missing = [] if options.table else [pair for pair in wanted if pair not in there]
    for seed in {seed for _, seed in missing}:
        warm_start(seed, options.out / f"model-{seed}", options.out / "warm-start.txt")
    free = queue.SimpleQueue[str | None]()
    for index in range(options.jobs):
        free.put(options.gpus[index % len(options.gpus)] if options.gpus else None)

    def job(variant: str, seed: int) -> Row:
        gpu = free.get()
        try:
            return one(variant, seed, options.out, options.settings, gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = {pool.submit(job, variant, seed): (variant, seed) for variant, seed in missing}
        for done in as_completed(jobs):
            try:
                row = done.result()
            except (subprocess.CalledProcessError, OSError, ValueError) as error:
                print(f"{'-'.join(map(str, jobs[done]))}: {error}", file=sys.stderr, flush=True)
                continue
            rows.append(row)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps({key: row[key] for key in ("variant", "seed", "reward_last5", "nll_change")}), flush=True)
    return sorted(rows, key=lambda row: (list(variants()).index(row["variant"]), row["seed"]))


def main() -> int:
    """Command line. Returns 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=sorted(variants()), default=list(variants()))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="override of every manifest")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--gpus", nargs="+", default=[], help="GPUs that runs are dealt to; none: all on the CPU")
    parser.add_argument("--out", type=Path, default=Path("runs/echo-effect"))
    parser.add_argument("--table", action="store_true", help="only write the table of the rows that are there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = sweep(options, options.out / "rows.jsonl")
    text = table(rows)
    (options.out / "table.md").write_text(text + "\n")
    print(text)
    return 0 if options.table or len(rows) >= len(options.seeds) * len(options.variants) else 1


if __name__ == "__main__":
    sys.exit(main())
