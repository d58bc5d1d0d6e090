"""Random spec changes of living runs: each converges or is refused, and none harms a gang without saying so.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.spec_transitions --count 1000 [--seed 1]

Real: etcd, API server and its CRD, controller manager, scheduler (one machine, the test cluster) and the operator.
Played: kubelets and orchestrators. As root. Changes are drawn from the CRD's own schema; what each may do is the table
of effects in ``api.mutability``. Exit code 1: a change did something else.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.operator_faults import test_cluster
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.manifests.spec_changes import patterns, schema
from echorl_testing.operator.run_life import Field
from echorl_testing.operator.transitions import Tally, transitions


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.spec_transitions", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("--count", type=int, default=1000, help="changes (default: 1000)")
    made.add_argument("--seed", type=int, default=1, help="other seeds give other changes (default: 1)")
    made.add_argument("--at-once", type=int, default=8, help="runs at a time (default: 8)")
    made.add_argument("--cluster", type=int, help="number of a test cluster that runs already; default: a new one")
    return made


def main(arguments: Sequence[str]) -> int:
    """Make the changes; the exit code."""
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, test_cluster(options.cluster) as cluster:
        install_crd(cluster.api)

        async def all_of_them() -> Tally:
            async with Field(cluster.api, cluster.connection, Path(folder)) as field:
                return await transitions(field, options.count, seed=options.seed, at_once=options.at_once)

        started = time.monotonic()
        tally = asyncio.run(all_of_them())
    for problem in tally.problems:
        print(problem, end="\n\n")
    row = {
        "seed": options.seed,
        "changes": tally.count,
        "seconds": round(time.monotonic() - started),
        "problems": len(tally.problems),
        "paths": f"{len(tally.touched)} of {len(list(patterns(schema())))}",
        **dict(sorted(tally.outcomes.items())),
    }
    print(json.dumps(row))
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
