"""The quickstart while its processes are killed at random: whether it learns as it does undisturbed.

    make setup && PYTHONPATH=tests/support .venv/bin/python -m benchmarks.disturbed --seeds 0 1 --kills 4 --out DIR

Each seed has a fresh warm start and a fresh run, of which the engine, the trainer and the orchestrator are killed, in
random order and then any of them again, each at a random moment of a random step. A line of JSON a seed: the row of
``benchmarks.quickstart``, which undisturbed seeds are measured with, and ``killed``: which process after which step.
"""

import argparse
import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.quickstart import train, warm_start
from echorl_orchestrator.records.recorder import STEPS, read_rows
from echorl_testing.local.run_processes import noted, roles_of

ROLES = ("inference", "orchestrator", "trainer")
FIRST, LAST = 4, 38
"""Steps between which kills are drawn, of 44."""
LOOK_S = 0.2


def schedule(chance: random.Random, kills: int) -> list[tuple[int, str]]:
    """After which step which role is killed; every role once before one is killed again."""
    order = [*chance.sample(ROLES, len(ROLES)), *chance.choices(ROLES, k=max(0, kills - len(ROLES)))]
    return list(zip(sorted(chance.sample(range(FIRST, LAST), kills)), order, strict=False))


def kill(root: Path, planned: list[tuple[int, str]], chance: random.Random, over: threading.Event) -> list[Any]:
    """Kill what is planned of a run in ``root`` until it is over; after which step which process was."""
    killed = []
    for step, role in planned:
        while _step(root) < step and not over.wait(LOOK_S):
            pass
        # What is disturbed is a matter of chance; a step takes some seconds.
        over.wait(chance.uniform(0.0, 5.0))
        while not over.is_set() and (name := _killed(root, role)) is None:
            over.wait(LOOK_S)
        if not over.is_set():
            killed.append((_step(root), name))
    return killed


def _step(root: Path) -> int:
    files = root.glob(f"records/attempt_*/{STEPS}")
    return max((row["step"] for file in files for row in read_rows(file)), default=0)


def _killed(root: Path, role: str) -> str | None:
    for name, pid in roles_of(noted(root)).items():
        if name.startswith(f"{role}-"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return name
    return None


def disturbed(seed: int, kills: int, out: Path) -> dict[str, Any]:
    """One seed's row."""
    out.mkdir(parents=True)
    chance, began, over = random.Random(seed), time.monotonic(), threading.Event()
    warm_start(seed, out / "model", out / "log.txt")
    with ThreadPoolExecutor() as threads:
        killed = threads.submit(kill, out / "run", schedule(chance, kills), chance, over)
        try:
            row = train("echo", seed, out, out / "model", [])
        finally:
            over.set()
        return row | {"killed": killed.result(), "took_s": round(time.monotonic() - began)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for seed in options.seeds:
        row = disturbed(seed, options.kills, options.out / f"seed-{seed}")
        print(json.dumps(row), flush=True)
        with (options.out / "disturbed.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
