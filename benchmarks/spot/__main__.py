"""A run in real pods that loses pods at random: what it gets done of what it gets done undisturbed.

    make setup && PYTHONPATH=tests/support .venv/bin/python -m benchmarks.spot --out DIR

Real: the test cluster with its node (as root), the operator, prepare, the trainer, vLLM on the CPU, and a small seeded
model on two environments, one of which leaves warnings to learn for ever. Losses are a Poisson process: each pod of
the run is lost with a chance of ``--rates`` percent per ten minutes, by an eviction, a deletion without grace, or a
kill of its processes in place.
One life of ``--minutes`` for each rate and side; ``DIR/spot-SIDE-RATE`` has its pods' logs and its records, and
``DIR/spot.jsonl`` a line of JSON:

- ``steps_a_minute``, and ``of_undisturbed``: their ratio to the life without losses of the same side.
- ``kept``: trainer seconds that neither a restart nor steps made again took, over all that are decided.
- ``thrown_away``: sampled tokens lost with an engine, an orchestrator or an attempt, over all that were sampled.
- ``paused_s``: by role that lost a pod, of several trainers by pod, median and longest of the longest times without a
  step that had not been made before, of each loss until the next one, two minutes at the most; ``undisturbed_s`` is
  the longest such time before the first loss.
- ``exact``: no sample was trained twice, none is missing in the committed history, and the last checkpoint is, bit for
  bit, what its recorded batches make of the first model. Else ``wrong`` says what was found.

A life that does not come to its end leaves ``failed`` with the reason, and the next one begins. How many losses to
expect: rate x pods x minutes / 10; a ratio from fewer than two or three of them says nothing.

``--sides earlier`` lives through the same with programs, CRD and operator of ``echorl_testing.earlier``.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.spot.left_behind import LeftBehind
from benchmarks.spot.life import END_S, Life
from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster import machine_image, namespaces
from echorl_testing.cluster.api import ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.earlier import earlier
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.local.local_run import eventually
from echorl_testing.operator.real_stage import PACKAGES, RESTRICTED, staged


def lived(cluster: Cluster, folder: Path, options: argparse.Namespace, side: str, percent: float) -> dict[str, Any]:
    """One life, as a row."""
    name = name_of(side, percent)
    namespaces.make_namespace(cluster.api, name, RESTRICTED)
    code = folder / "earlier" if side == "earlier" else None
    (folder / name).mkdir()
    spec: dict[str, Any] = {
        "maxSteps": 1_000_000,
        "inference": {"replicas": options.engines, "gpusPerReplica": 0, "tensorParallel": 1},
        "failurePolicy": {"maxRestarts": 1000, "backoffSeconds": 0},
        "checkpoint": {"interval": options.interval, "keepLast": 3},
    }
    if options.memory is not None:
        spec["checkpoint"]["memory"] = {"limit": "1Gi", "mirror": options.memory == "mirrored"}
    with (
        staged(cluster, name, folder / name, "spot", code=code, **spec) as stage,
        LeftBehind(stage, folder / name / "operator.log", options.out / name) as left,
    ):
        # As the replay computes: sums are of other bits with other numbers of threads.
        trainer = stage.document["spec"]["trainer"]
        trainer["replicas"] = options.trainers
        # So low that thousands of steps leave it something to learn: a policy that is sure of itself ends the run.
        trainer["optimizer"] = {"type": "adamw", "lr": 1e-6}
        (container,) = trainer["template"]["spec"]["containers"]
        container["env"].append({"name": "OMP_NUM_THREADS", "value": "1"})
        life = Life(stage, left, random.Random(f"{options.seed} {percent}"), percent / 100)
        steps = life.through(60 * options.minutes)
        row = {"side": side, "percent": percent, "minutes": options.minutes, "steps_a_minute": round(steps, 2)}
        row |= life.measured() | {"lost": dict(life.lost)} | life.paused()
        row |= life.finish(folder / name / "check", END_S + 120 * options.minutes)
    return row


def tried(cluster: Cluster, folder: Path, options: argparse.Namespace, side: str, percent: float) -> dict[str, Any]:
    """``lived``, or a row that says why it did not come to its end; nothing of it runs afterwards."""
    name = name_of(side, percent)
    try:
        return lived(cluster, folder, options, side, percent)
    except (AssertionError, TimeoutError, ClusterError, ApiError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return {"side": side, "percent": percent, "exact": False, "failed": str(error).split("\n", maxsplit=1)[0]}
    finally:
        cluster.api.delete(f"/api/v1/namespaces/{name}")
        # What still ends would take processors from the next life.
        eventually(lambda: cluster.api.find(f"/api/v1/namespaces/{name}") is None, f"the end of {name}", END_S)


def name_of(side: str, percent: float) -> str:
    """Of a life's namespace."""
    return f"spot-{side}-{percent:g}".replace(".", "-")


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.spot", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--out", type=Path, required=True, help="folder for results")
    made.add_argument("--rates", type=float, nargs="+", default=[0, 5, 10, 20, 30], help="percent per ten minutes")
    made.add_argument("--minutes", type=float, default=10.0, help="of a life, after its first checkpoint")
    made.add_argument("--sides", nargs="+", choices=["ours", "earlier"], default=["ours"])
    made.add_argument("--engines", type=int, default=2)
    made.add_argument("--trainers", type=int, default=1, help="pods of the gang")
    made.add_argument("--interval", type=int, default=2, help="steps from checkpoint to checkpoint on the volume")
    made.add_argument("--memory", choices=["kept", "mirrored"], help="copies in pods' memory, and at neighbours; none")
    made.add_argument("--seed", type=int, default=0, help="of when and what is lost")
    return made


def main(arguments: Sequence[str]) -> int:
    """Live through what is asked for; 1 if something was trained twice, lost, or is not what its batches make."""
    options = parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    exact = True
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        folder.chmod(0o755)
        cluster = clusters.start(tethered=True)
        stack.callback(cluster.stop)
        cluster.node.ensure()
        cluster.node.import_image(machine_image.image())
        for side in options.sides:
            install_crd(cluster.api) if side == "ours" else install_earlier(cluster, folder / "earlier")
            undisturbed: float | None = None
            for percent in options.rates:
                row = tried(cluster, folder, options, side, percent)
                steps = row.get("steps_a_minute")
                undisturbed = steps if percent == 0 else undisturbed
                row["of_undisturbed"] = round(steps / undisturbed, 3) if steps and undisturbed else None
                exact &= row["exact"]
                print(json.dumps(row), flush=True)
                with (options.out / "spot.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return 0 if exact else 1


def install_earlier(cluster: Cluster, folder: Path) -> None:
    """The earlier version's CRD in place of today's, and its code in ``folder``."""
    tree = earlier(folder, "crds", *PACKAGES)
    for path in sorted((tree / "crds").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
