"""``python -m benchmarks.sandboxes``: cold and warm starts, commands, ends; hundreds in sequence, some at once."""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.sandboxes.daemon import daemon_measured
from benchmarks.sandboxes.measuring import Figures, measured


def main() -> int:
    """Exit code 0; 1 when something was left behind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandboxes", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="sandboxes in sequence, of each image")
    parser.add_argument("--cold", type=int, default=10, help="starts with an image that is not in the cache")
    parser.add_argument("--at-once", type=int, default=16, help="sandboxes that are started at the same time")
    parser.add_argument("--files", type=int, default=2000, help="files of the image, of 4 KiB each")
    parser.add_argument("--daemon", action="store_true", help="only the daemon of pods, which takes Go")
    chosen = parser.parse_args()
    if chosen.daemon:
        print(f"{platform.release()}, {os.cpu_count()} cores, {_user()}")
        print(_table(asyncio.run(daemon_measured(chosen.count))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measured(Path(folder), chosen.count, chosen.cold, chosen.at_once, chosen.files))
    print(f"{platform.release()}, {os.cpu_count()} cores, {shutil.which('bwrap')}, {_user()}")
    print(_table(figures))
    print(json.dumps({"left_processes": figures.left_processes, "left_files": figures.left_files}))
    return 1 if figures.left_processes or figures.left_files else 0


def _user() -> str:
    return "root" if os.geteuid() == 0 else "an ordinary user"


def _table(figures: Figures) -> str:
    lines = ["| what | times | p50 ms | p99 ms |", "|---|---|---|---|"]
    for what, seconds in figures.seconds.items():
        ordered = sorted(seconds)
        middle, last = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
        lines.append(f"| {what} | {len(ordered)} | {1000 * middle:.1f} | {1000 * last:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
