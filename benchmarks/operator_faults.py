"""Every fault of docs/faults.md that an operator is put to, longer or more often than tests do.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.operator_faults --out DIR [--only WORDS] [--seconds 300]

Real: etcd, API server, controller manager, scheduler (one machine, the test cluster) and the operator behind a proxy
that misbehaves. Played: kubelets and orchestrators. As root. Results: a line of JSON each in
``DIR/operator_faults.jsonl``.
Exit code 1: a run did not come through.

- ``--kills N``: the operator is killed at its k-th write, for every N-th k of a run's life; 0: not at all.
- ``--double-kills N``: and its successor too, at a write of its own; N pairs by chance.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.all_scenarios import NAMES, lived_through
from echorl_testing.operator.fault_campaign import Outcome
from echorl_testing.operator.killed_lives import compared, lived
from echorl_testing.operator.run_life import Field


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_faults", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("--out", type=Path, required=True, help="folder for results")
    made.add_argument("--only", nargs="*", default=[""], help="scenarios whose names have one of these words")
    made.add_argument("--seconds", type=float, default=10.0, help="how long an outage lasts (default: 10)")
    made.add_argument("--at-once", type=int, default=20, help="scenarios at a time (default: 20)")
    made.add_argument("--kills", type=int, default=0, help="kill the operator at every N-th write")
    made.add_argument("--double-kills", type=int, default=0, help="so many pairs of kills")
    made.add_argument("--seed", type=int, default=0, help="of the pairs (default: 0)")
    made.add_argument("--cluster", type=int, help="number of a test cluster that runs already; default: a new one")
    return made


@contextmanager
def test_cluster(number: int | None) -> Iterator[Cluster]:
    """The test cluster of this number, or without one a new one that ends with the block."""
    if number is not None:
        found = clusters.find(number)
        if found is None:
            raise SystemExit(f"--cluster: there is no test cluster {number}")
        yield found
        return
    cluster = clusters.start(tethered=True)
    try:
        yield cluster
    finally:
        cluster.stop()


class _Report:
    """Prints and keeps what came of each."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._file, self.failed = out / "operator_faults.jsonl", 0

    def tell(self, name: str, seconds: float, measured: str, problem: str) -> None:
        self.failed += bool(problem)
        row = {"name": name, "seconds": round(seconds, 1), "measured": measured, "problem": problem}
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{'FAILED' if problem else 'ok':6} {seconds:6.0f} s  {name}: {measured or problem[-3000:]}", flush=True)


async def _scenarios(cluster: Cluster, options: argparse.Namespace, folder: Path, report: _Report) -> None:
    names = [name for name in NAMES if any(word in name for word in options.only)]

    def tell(one: Outcome) -> None:
        report.tell(one.name, one.seconds, one.measured, one.problem)

    async with Field(cluster.api, cluster.connection, folder) as field:
        await lived_through(field, names, hold_s=options.seconds, at_once=options.at_once, tell=tell)


async def _kills(cluster: Cluster, options: argparse.Namespace, folder: Path, report: _Report) -> None:
    async with Field(cluster.api, cluster.connection, folder) as field:
        undisturbed = await lived(field)
        report.tell("not killed", 0.0, f"{undisturbed.writes} writes", "")
        turn = asyncio.Semaphore(options.at_once)

        async def one(*kill_at: int) -> None:
            async with turn:
                started = time.monotonic()
                try:
                    life = await lived(field, *kill_at)
                    found = compared(life, undisturbed)
                    measured = f"{life.writes} writes" if life.struck else "has fewer writes"
                except AssertionError as error:
                    found, measured = [str(error)], ""
            name = "killed at write " + ", its successor at its ".join(map(str, kill_at))
            report.tell(name, time.monotonic() - started, "" if found else measured, "\n".join(found))

        chance = random.Random(options.seed)
        singles = range(1, undisturbed.writes + 1, options.kills) if options.kills else range(0)
        pairs = [
            (chance.randint(1, undisturbed.writes), chance.randint(1, undisturbed.writes // 2))
            for _ in range(options.double_kills)
        ]
        lives: list[Any] = [one(number) for number in singles] + [one(*pair) for pair in pairs]
        await asyncio.gather(*lives)


async def _all(cluster: Cluster, options: argparse.Namespace, folder: Path, report: _Report) -> None:
    install_crd(cluster.api)
    if options.only:
        await _scenarios(cluster, options, folder, report)
    if options.kills or options.double_kills:
        await _kills(cluster, options, folder, report)


def main(arguments: Sequence[str]) -> int:
    """Live through what is asked for; the exit code."""
    options = parser().parse_args(arguments)
    report = _Report(options.out)
    with tempfile.TemporaryDirectory() as folder, test_cluster(options.cluster) as cluster:
        asyncio.run(_all(cluster, options, Path(folder), report))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
