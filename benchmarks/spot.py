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
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.left_behind import LeftBehind
from benchmarks.pauses import longest_pause, new_steps, pauses_after
from echorl_core.config import TrainerConfig
from echorl_core.wire.goodput import TimeState
from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster import machine_image, namespaces
from echorl_testing.cluster.api import ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.earlier import earlier
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.local import history
from echorl_testing.local.local_run import eventually
from echorl_testing.operator.real_stage import PACKAGES, RESTRICTED, Stage, staged

TEN_MINUTES = 600.0
WINDOW_S = 120.0
"""After a loss, in which what it cost is looked for."""
START_S, END_S = 900.0, 600.0
ROLES = ("trainer", "inference", "orchestrator")
WAYS = ("evicted", "deleted", "killed")
LOST = (TimeState.ENGINE_LOST, TimeState.LOST)


@dataclass
class Life:
    """One run's, as it is disturbed."""

    stage: Stage
    left: LeftBehind
    chance: random.Random
    rate: float
    """Chance of a pod to be lost in ten minutes."""
    lost: Counter[str] = field(default_factory=Counter)
    """Losses by what was lost, and how."""
    losses: list[tuple[str, float]] = field(default_factory=list)
    """What was lost, and when, in seconds since the epoch."""
    reached: int = 0
    """The newest step when something was lost last."""

    def through(self, seconds: float) -> float:
        """Live for so long from the first checkpoint on; steps a minute."""
        run = self.stage.run
        run.create(self.stage.document)
        run.started(START_S)
        began, first = time.monotonic(), int(run.status()["step"])
        due = began + self._pause()
        while (now := time.monotonic()) < began + seconds:
            try:
                self.left.look()
                if now >= due:
                    due = now + self._pause()
                    self._lose_one()
            except (ApiError, OSError) as error:  # of a busy machine's API server, which is asked again
                run.note(f"no answer: {error}")
            time.sleep(0.2)
        run.until("a step after the last loss", lambda: self._step() > self.reached, START_S)
        step = int(run.status()["step"])
        return 60 * (step - first) / (time.monotonic() - began)

    def _pods(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Role, name and object of those that can be lost."""
        found = ((role, *one) for role in ROLES for one in sorted(self.stage.run.pods(role).items()))
        return [
            (role, name, pod)
            for role, name, pod in found
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") in {"Pending", "Running"}
        ]

    def _pause(self) -> float:
        # Between two attempts there may be none; then as for one, since somebody has to look again.
        pods = max(1, len(self._pods()))
        return self.chance.expovariate(self.rate * pods / TEN_MINUTES) if self.rate else float("inf")

    def _label(self, role: str, name: str) -> str:
        # A gang's first pod is replaced in another way than the others.
        several = role == "trainer" and self.stage.document["spec"]["trainer"]["replicas"] > 1
        return name.removeprefix(f"{self.stage.run.name}-") if several else role

    def _lose_one(self) -> None:
        run, pods = self.stage.run, self._pods()
        if not pods:
            return
        role, name, pod = self.chance.choice(pods)
        way = self.chance.choice(WAYS)
        where = f"/api/v1/namespaces/{run.namespace}/pods/{name}"
        try:
            if way == "evicted":
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                run.api.create(f"{where}/eviction", eviction)
            elif way == "deleted":
                run.api.delete(where, grace_s=0)
            else:
                (status,) = pod["status"]["containerStatuses"]
                run.cluster.node.kill_container(status["containerID"])
        except (ApiError, ClusterError, KeyError, ValueError) as error:
            run.note(f"{name} could not be {way}, it is being lost already: {error}")
            return
        run.note(f"{name} is {way}")
        label = self._label(role, name)
        self.lost[f"{label} {way}"] += 1
        self.losses.append((label, time.time()))
        self.reached = self._step()

    def _step(self) -> int:
        try:
            return int(self.stage.run.status().get("step", 0))
        except (ApiError, OSError) as error:  # of a busy machine's API server, which is asked again
            self.stage.run.note(f"no answer: {error}")
            return 0

    def paused(self) -> dict[str, Any]:
        """How long no new step was made, by what was lost before."""
        made = new_steps(self.stage.directory)
        found = pauses_after(self.losses, made, WINDOW_S)
        first = min((at for _, at in self.losses), default=made[-1])
        return {
            "undisturbed_s": round(longest_pause(made, made[0], first), 1),
            "paused_s": {
                label: {"median": round(statistics.median(took), 1), "longest": round(max(took), 1), "count": len(took)}
                for label, took in found.items()
            },
        }

    def finish(self, folder: Path, replay_s: float) -> dict[str, Any]:
        """End the run a few steps on; whether what it has trained is exactly what it says, and else what is wrong.

        ``replay_s``: for all of its steps, made anew.
        """
        run, directory = self.stage.run, self.stage.directory
        last = run.status()["step"] + 12
        run.edit({"maxSteps": last})
        config = self._config()
        run.phase("Succeeded", END_S)
        try:
            history.assert_nothing_was_trained_twice(directory, last)
        except AssertionError as error:
            return {"exact": False, "wrong": f"the history of {directory.root}: {error}"}
        replayed, loaded = history.never_killed(directory, folder, last_step=last, config=config, deadline_s=replay_s)
        return {"exact": True} if replayed == loaded else {"exact": False, "wrong": f"{loaded}, replayed: {replayed}"}

    def _config(self) -> TrainerConfig:
        """The newest attempt's, with this machine's paths."""
        run, volume = self.stage.run, self.stage.volume
        maps = run.api.get(f"/api/v1/namespaces/{run.namespace}/configmaps")["items"]
        newest = max(
            (one for one in maps if "trainer.json" in one.get("data", {})),
            key=lambda one: str(one["metadata"]["creationTimestamp"]),
        )
        found = TrainerConfig.model_validate_json(newest["data"]["trainer.json"])
        model = found.model.model_copy(update={"path": str(volume / "models" / "tiny")})
        return found.model_copy(update={"run_dir": str(self.stage.directory.root), "model": model})

    def measured(self) -> dict[str, Any]:
        """Shares of time and tokens, from what the newest attempt keeps."""
        attempt = self.stage.directory.last_attempt()
        told = self.stage.directory.attempt(attempt) / "goodput.json"
        if not told.exists():
            return {"attempts": attempt}  # an earlier version, which accounts for nothing
        saved = json.loads(told.read_text())
        seconds: dict[str, float] = saved["seconds"]["trainer"]
        decided = sum(took for state, took in seconds.items() if state != TimeState.UNDECIDED)
        gone = seconds.get(TimeState.RESTARTING, 0.0) + seconds.get(TimeState.REDONE, 0.0)
        tokens: dict[str, int] = saved["tokens"]
        thrown = sum(tokens.get(state, 0) for state in LOST)
        return {
            "kept": round(1 - gone / decided, 3),
            "thrown_away": round(thrown / max(1, sum(tokens.values())), 4),
            "trainer_seconds": {state: round(took, 1) for state, took in seconds.items()},
            "attempts": attempt,
        }


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
