"""How long the page of a large run takes to open.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.view --out DIR [--steps 1000 --episodes 1000]

Writes a run of ``steps`` x ``episodes`` episodes into ``DIR/run-STEPS-EPISODES`` from a seed, once, as Parquet files of
a step each, and a few of each step as JSON lines. Then, ``--repeats`` times, with a new process each:

serves      from the start of ``echorl view`` to its first answer, which has the newest episodes and all curves
shows       from the address in a browser's bar to the first row of episodes on the screen (headless Chromium, if it
            is there; a new profile, so nothing is in its cache)
all         from the start until every episode is in the tables, and filters and totals are over all of them
asks        a filter over all episodes, with its total: by reward, end, environment and part of a name
"""

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from benchmarks.view.run_folder import RunWriter, Shape
from echorl_cli.view import queries
from echorl_cli.view.folders import shown_runs
from echorl_cli.view.queries import Wanted
from echorl_cli.view.watch import Watch

SEED = 1
_WANTED = Wanted(reward_from=0.5, stop="timeout", environment="search", text="7")


def folder(out: Path, steps: int, episodes: int) -> Path:
    """The run's folder, written if it is not there."""
    root = out / f"run-{steps}-{episodes}"
    if not (root / "whole").exists():
        RunWriter(root, root.name, SEED, Shape(steps, episodes)).write()
        (root / "whole").touch()
    return root


@contextmanager
def served(*roots: Path) -> Iterator[str]:
    """``echorl view`` of runs, in a process of its own; its address."""
    command = [sys.executable, "-m", "echorl_cli", "view", *map(str, roots), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = process.stdout.readline() if process.stdout else ""
            if (found := re.search(r"http://\S+", told)) is None:
                raise RuntimeError(told)
            yield found[0]
        finally:
            process.terminate()


def serves_s(root: Path) -> float:
    """Seconds until the page of episodes is answered."""
    began = time.perf_counter()
    with served(root) as address, urlopen(f"{address}episodes") as page:  # noqa: S310 - our own server
        page.read()
        return time.perf_counter() - began


def shows_s(root: Path) -> float | None:
    """Seconds until a browser shows an episode; None without a browser."""
    from echorl_testing import browser as browsers  # noqa: PLC0415 - of the tests: only where there is a browser

    if browsers.missing():
        return None
    with served(root) as address, browsers.chromium() as browser:
        urlopen(address).read()  # noqa: S310 - it is up
        began = time.perf_counter()
        browser.get(f"{address}episodes")
        while not browser.find_elements("css selector", ".ag-cell.link"):
            time.sleep(0.01)
        return time.perf_counter() - began


def all_s(root: Path, episodes: int) -> tuple[float, float]:
    """Seconds until every episode is in the tables, and of a question to them."""
    began = time.perf_counter()
    watch = Watch(shown_runs([root]))
    while watch.look():
        pass
    taken = time.perf_counter() - began
    tables = watch.cursor()
    assert queries.totals(tables, Wanted())["episodes"] == episodes  # noqa: S101 - or nothing was measured
    asked = time.perf_counter()
    queries.episodes(tables, _WANTED)
    queries.totals(tables, _WANTED)
    return taken, time.perf_counter() - asked


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.view", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the run")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=1000, help="of a step")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    root = folder(options.out, options.steps, options.episodes)
    count = options.steps * options.episodes
    rows: dict[str, list[float]] = {name: [] for name in ("serves", "shows", "all", "asks")}
    for _ in range(options.repeats):
        rows["serves"].append(serves_s(root))
        if (shown := shows_s(root)) is not None:
            rows["shows"].append(shown)
        taken, asked = all_s(root, count)
        rows["all"].append(taken)
        rows["asks"].append(asked)
    print(f"{count:,} episodes, seed {SEED}, {options.repeats} times: median seconds (least to most)")
    for name, found in rows.items():
        told = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "no browser here"
        print(f"{name:8}{told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
