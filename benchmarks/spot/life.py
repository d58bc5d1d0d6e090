"""One life of a run that loses pods at random: what is lost and when, and what became of it."""

import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.spot.left_behind import LeftBehind
from benchmarks.spot.pauses import longest_pause, new_steps, pauses_after
from echorl_core.config import TrainerConfig
from echorl_core.wire.goodput import TimeState
from echorl_testing.cluster.api import ApiError
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.local import history
from echorl_testing.operator.real_stage import Stage

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
            "undisturbed_s": round(longest_pause([at for at in made if at <= first], made[0], first), 1),
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
