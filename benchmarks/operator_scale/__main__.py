"""The operator at scale: ratios to a bare client, idle cost, memory, start, failover, storms of edits.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.operator_scale --out DIR

Real: etcd, API server, controller manager, scheduler (one machine, the test cluster), and the operator as its own
process. Played: kubelets, by kwok on a few very large fake nodes (prepare pods succeed at once, all others are ready
at once), and orchestrators, by one server in this process that says Running at step 3 to whomever asks.

- ``apply``: runs are created 16 at a time while the operator, with its 16 workers, turns them into children. The bare
  client has the operator's HTTP client and settings, 16 workers and the same bodies, rendered before; it learns of runs
  by a pipe. The staged client does the same in the operator's order: engines and orchestrator after prepare, then the
  gates. Each repetition has a fresh control plane, and sides take turns. Ends when the last child of the last run
  is there (the orchestrator's pod, which comes after prepare has succeeded).
- ``life``: memory at 0, 100 and ``--runs`` runs; nothing to do; storms of edits of ``inference.replicas`` of every run,
  from the API server's reply to the edit to the first child that the operator writes, as a watch shows it; the leader
  killed; an operator that starts beside foreign pods.
- ``edits``: ``--edited-runs`` runs are edited one after the other, while nothing else happens and while ``--runs`` more
  are created at once and start; the same measure of time, from edit to child.
- ``many``: ``--idle-runs`` runs with nothing to do.

Every run uses its namespace's volume claim. The operator watches the whole cluster. Renewals of its lease are not
counted as writes. Results: a line of JSON each in ``DIR/operator_scale.jsonl``, a table in ``DIR/operator_scale.md``.
"""

import argparse
import asyncio
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.operator_scale import applying, figures, living, played, submitting
from benchmarks.operator_scale.submitting import Shape

PARTS = ("apply", "life", "edits", "many")
SIDES = ("bare", "staged", "operator")


def _shape(text: str) -> Shape:
    trainers, engines = text.split("+")
    return Shape(int(trainers), int(engines))


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_scale", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    made.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    made.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    made.add_argument("--repeats", type=int, default=3, help="of apply, each side (default: 3)")
    made.add_argument("--runs", type=int, default=200, help="of apply and life (default: 200)")
    made.add_argument(
        "--shape", type=_shape, default=submitting.TWELVE, help="trainers+engines of a run (default: 8+3)"
    )
    made.add_argument("--namespaces", type=int, default=10, help="that runs are spread over (default: 10)")
    made.add_argument("--idle-runs", type=int, default=1000, help="of many (default: 1000)")
    made.add_argument("--idle-shape", type=_shape, default=submitting.THREE, help="of many (default: 1+1)")
    made.add_argument("--idle-s", type=float, default=120.0, help="seconds to look on (default: 120)")
    made.add_argument("--edited-runs", type=int, default=40, help="of edits (default: 40)")
    made.add_argument("--storms", type=int, default=3, help="of edits (default: 3)")
    made.add_argument("--failovers", type=int, default=3, help="leaders killed (default: 3)")
    made.add_argument("--starts", type=int, default=3, help="beside foreign pods (default: 3)")
    made.add_argument("--foreign-pods", type=int, default=10_000, help="(default: 10000)")
    made.add_argument("--profile", action="store_true", help="apply: cProfile of the operator, which slows it")
    return made


async def measure(options: argparse.Namespace) -> None:
    """Do all parts; a line of JSON each."""
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "operator_scale.jsonl"
    rows: list[dict[str, Any]] = []

    def report(part: str, **values: Any) -> None:
        row = {"part": part, "at": time.strftime("%H:%M:%S", time.gmtime()), "load": os.getloadavg()[0], **values}
        rows.append(row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    async with played.orchestrators():
        if "apply" in options.parts:
            await _apply(options, report)
        if "life" in options.parts:
            await living.life(options, options.out, report)
        if "edits" in options.parts:
            await living.edits(options, options.out, report)
        if "many" in options.parts:
            await living.many(options, options.out, report)
    table = figures.applied_table([row for row in rows if row["part"] == "apply"])
    (options.out / "operator_scale.md").write_text(table + "\n")
    print(table)


async def _apply(options: argparse.Namespace, report: Any) -> None:
    where = submitting.namespaces(options.namespaces)
    for number in range(options.repeats):
        # Who begins changes, so that neither side always has the quieter half.
        for name in options.sides if number % 2 == 0 else reversed(options.sides):
            if name == "operator":
                profile = options.out / f"profile-{number}" if options.profile else None
                side = await applying.operator_side(options.runs, options.shape, where, options.out, profile)
            else:
                side = await applying.bare_side(name, options.runs, options.shape, where, options.out)
            report("apply", **asdict(side))


if __name__ == "__main__":
    asyncio.run(measure(parser().parse_args()))
