"""A run that samples while it trains beside the same run in turns: seconds a step, shares in which its parts work.

    .venv/bin/python -m benchmarks.async_gain --out DIR [--manifest examples/quickstart.yaml] [--set model.name=PATH]

Without ``model.name`` the quickstart's model is made. Both sides have the manifest's seed; ``sync`` has
``algorithm.maxStaleness: 0``, so that nothing is sampled while a step is trained, ``async`` what the manifest says.
They take turns. Where phases are equally long, and on processors of their own, 2.0 is what can be had.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quickstart import EXAMPLES, timed, warm_start

SIDES: dict[str, tuple[str, ...]] = {"sync": ("algorithm.maxStaleness=0",), "async": ()}
SETTLED = 3
"""Steps at the beginning that are left out."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--manifest", default=EXAMPLES["echo"])
    parser.add_argument("--set", dest="settings", action="append", default=[], help="override of the manifest")
    parser.add_argument("--steps", type=int, default=16, help="of every run")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each side")
    return parser.parse_args(arguments)


def measured(steps: Sequence[Mapping[str, Any]], engines: int) -> dict[str, float]:
    """Median seconds a step, and the shares of the settled steps' time in which trainer and engines were at work.

    Raises:
        ValueError: there are no settled steps.
    """
    settled = steps[SETTLED:]
    if not settled:
        raise ValueError(f"found {len(steps)} steps, accepted are more than {SETTLED}")
    total = sum(row["seconds/since_last_step"] for row in settled)
    trained = sum(row["seconds/forward_backward"] + row["seconds/optimizer"] for row in settled)
    idle = sum(row["seconds/engines_idle"] for row in settled)
    return {
        "step_s": statistics.median(row["seconds/since_last_step"] for row in settled),
        "trainer_busy": trained / total,
        "engines_busy": 1 - min(1.0, idle / (total * engines)),
    }


def run(side: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run of a side."""
    folder = options.out / f"{side}-{number}"
    overrides = [f"maxSteps={options.steps}", *options.settings, *SIDES[side]]
    arguments = [argument for setting in overrides for argument in ("--set", setting)]
    command = [sys.executable, "-m", "echorl_cli", "run", options.manifest, "--out", str(folder), *arguments]
    timed(command, options.out / f"{side}-{number}.txt")
    (steps,) = folder.glob("records/attempt_*/steps.jsonl")
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    return {"side": side, **measured(rows, len(list(folder.glob("engine-*"))))}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown: medians over a side's runs, and its speed over that of ``sync``."""
    lines = ["| side | s a step | ÷ sync | trainer busy | engines busy |", "|" + "---|" * 5]
    medians = {
        side: {
            key: statistics.median(row[key] for row in rows if row["side"] == side) for key in rows[0] if key != "side"
        }
        for side in SIDES
    }
    for side, found in medians.items():
        gain = medians["sync"]["step_s"] / found["step_s"]
        busy = f"{found['trainer_busy']:.0%} | {found['engines_busy']:.0%}"
        lines.append(f"| {side} | {found['step_s']:.2f} | {gain:.2f} | {busy} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if not any(setting.startswith("model.name=") for setting in options.settings):
        model = options.out.resolve() / "model"
        warm_start(0, model, options.out / "model.txt")
        options.settings.append(f"model.name={model}")
    rows = [run(side, number, options) for number in range(options.repeats) for side in SIDES]
    (options.out / "async_gain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
