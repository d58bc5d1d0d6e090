"""The quickstart for several seeds, with and without the ECHO term, one after the other, and a table of what came out.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2 --out runs/bench

Every run is a fresh warm start and a fresh run directory. Wall and CPU seconds are of the whole process tree; what
starts the engine and loads the trainer (``setup``) stands apart.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = {"echo": "examples/quickstart.yaml", "rl-only": "examples/quickstart-rl-only.yaml"}


@dataclass(frozen=True)
class Timing:
    """Wall and CPU seconds of one command and all its children."""

    wall_s: float
    cpu_s: float


NO_TIME = Timing(0.0, 0.0)


def timed(
    command: list[str], log: Path, environ: Mapping[str, str] = os.environ, accepted: Collection[int] = (0,)
) -> Timing:
    """Run a command to its end; its output goes to ``log``.

    Raises:
        subprocess.CalledProcessError: its exit status is none of ``accepted``.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    with log.open("ab") as file:
        done = subprocess.run(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=False, env=environ)
    if done.returncode not in accepted:
        done.check_returncode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(time.monotonic() - started, cpu_s)


def warm_start(seed: int, model: Path, log: Path) -> Timing:
    """Build a seed's model, unless it is there."""
    module = (sys.executable, "-m", "examples.prepare_model", "--manifest", EXAMPLES["echo"])
    return timed([*module, "--seed", str(seed), "--model", str(model)], log)


def run(kind: str, seed: int, out: Path, settings: list[str]) -> dict[str, Any]:
    """Warm start and train; returns one row of the table."""
    out.mkdir(parents=True)
    model = out / "model"
    warm = warm_start(seed, model, out / "log.txt")
    return train(kind, seed, out, model, settings, warm=warm)


def train(
    kind: str,
    seed: int,
    out: Path,
    model: Path,
    settings: list[str],
    *,
    warm: Timing = NO_TIME,
    environ: Mapping[str, str] = os.environ,
    accepted: Collection[int] = (0,),
) -> dict[str, Any]:
    """Train ``model`` in ``out/run``; returns one row of the table.

    Raises:
        subprocess.CalledProcessError: the run's exit status is none of ``accepted``.
    """
    directory, log = out / "run", out / "log.txt"
    overrides = [f"model.name={model.resolve()}", f"seed={seed}", *settings]
    arguments = [argument for setting in overrides for argument in ("--set", setting)]
    command = [sys.executable, "-m", "echorl_cli", "run", EXAMPLES[kind], "--out", str(directory), *arguments]
    trained = timed(command, log, environ, accepted)
    report = json.loads((directory / "report.json").read_text())
    held_out = report["eval"]["terminal-held-out"]
    return {
        "kind": kind,
        "seed": seed,
        "steps": report["steps"],
        "reward_first5": report["reward_first5"],
        "reward_last5": report["reward_last5"],
        "held_out_first": held_out["reward"][0],
        "held_out_last": held_out["reward"][-1],
        "held_out_nll_first": held_out["env_nll"][0],
        "held_out_nll_last": held_out["env_nll"][-1],
        "unigram_nats": report["baselines"]["unigram_nats"],
        "entropy_floor_nats": report["baselines"]["entropy_floor_nats"],
        "max_logprob_gap": report["max_logprob_gap"],
        "logprob_gap_tokens": report["logprob_gap_tokens"],
        "max_staleness": report["max_staleness"],
        "max_pause_s": report["max_pause_s"],
        "setup_s": report["setup_s"],
        "setup_cpu_s": report["setup_cpu_s"],
        "warm_start_and_rl_s": warm.wall_s + trained.wall_s - report["setup_s"],
        "warm_start_and_rl_cpu_s": warm.cpu_s + trained.cpu_s - report["setup_cpu_s"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=sorted(EXAMPLES), default=sorted(EXAMPLES))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="override of the manifest")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        for kind in options.kinds:  # interleaved, so that the machine's moods hit both kinds
            row = run(kind, seed, options.out / f"{kind}-{seed}", options.settings)
            rows.append(row)
            (options.out / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
            shown = {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
