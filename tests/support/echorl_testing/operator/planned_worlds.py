"""Worlds of run ``one`` for whole passes: what the operator made of an attempt stands beside its pods."""

import json
from dataclasses import replace
from typing import Any

from echorl_core.names import Phase
from echorl_manifest import load
from echorl_operator import names
from echorl_operator.children import Rendering, common, inference_deployment, render, trainer_set
from echorl_operator.children.revision import to_revision
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, Kind, PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Plan
from echorl_operator.plan.gang import digest
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import NOW, RUN_UID, meta, observed, pod, run, with_its_end

SETTINGS = Settings(operator_version="0.1.0")
BEGUN_S = 50.0
"""Seconds since the run began."""


def document(record: RunRecord) -> dict[str, Any]:
    """The manifest of a run."""
    head = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": names.KIND, "metadata": {"name": record.key.name}}
    return {**head, "spec": record.spec}


def rendering_of(record: RunRecord) -> Rendering:
    """As the operator renders it."""
    loaded = load(document(record))
    return render(loaded, uid=RUN_UID, namespace="ns", generation=record.generation, settings=SETTINGS)


def children(record: RunRecord, attempt: int = 1) -> tuple[ChildRecord, ...]:
    """Of an attempt that was rendered from this manifest, all as desired."""
    rendering = rendering_of(record)
    revision = to_revision(rendering, load(document(record)), attempt, record.generation)
    bodies = [*common(rendering), revision, trainer_set(rendering, attempt, 2), inference_deployment(rendering, 1)]
    return tuple(child(body) for body in bodies)


def child(body: dict[str, Any]) -> ChildRecord:
    """A child as the API server has it, with all of its pods ready."""
    desired = body.get("spec", {}).get("replicas", 0)
    counts = {"desired": desired, "replicas": desired, "ready": desired, "updated": desired}
    made = meta(body["metadata"]["name"])
    return ChildRecord(Kind(body["kind"]), made, json.dumps(body).encode(), observed_generation=1, **counts)


def gang(attempt: int = 1, **changes: Any) -> tuple[PodRecord, PodRecord]:
    """The two trainer pods of an attempt."""
    first, second = (pod(f"one-trainer-{n}", PodRole.TRAINER, attempt=attempt, index=n, **changes) for n in range(2))
    return first, second


def orchestrator(attempt: int = 1, **changes: Any) -> PodRecord:
    """The orchestrator's pod."""
    return pod("one-orchestrator", PodRole.ORCHESTRATOR, attempt=attempt, **changes)


def state(**changes: Any) -> RoleState:
    """What an orchestrator at work says."""
    fields: dict[str, Any] = {
        "attempt": 1,
        "phase": Phase.RUNNING,
        "step": 7,
        "waiting_for": "",
        "reward": 0.5,
        "trained": 7,
        "served_min": 6,
        "served_max": 7,
        "staleness_max": 1,
        "checkpoint": None,
        "abandoned": "",
        "engines": (),
        "failure_code": None,
        "failure_message": "",
        "last_step_at": NOW,
        "seen_at": NOW,
    }
    return RoleState(**(fields | changes))


def status(phase: Phase, attempt: int = 1, **changes: Any) -> dict[str, Any]:
    """Of a run of generation 1, in this phase; in an attempt that was admitted if it runs. ``control`` is merged."""
    control: dict[str, Any] = {"renderedGeneration": 1} if attempt else {}
    if phase in (Phase.STARTING, Phase.RUNNING):
        control["preparedAttempt"] = attempt
    if phase is Phase.RUNNING:
        control |= {"admittedAttempt": attempt, "admittedPods": digest(gang(attempt))}
    written = {
        "phase": str(phase),
        "attempt": attempt,
        "revision": names.revision("one", attempt, 1),
        "observedGeneration": 1,
        "startTime": to_text(NOW - BEGUN_S),
        **changes,
        "control": control | changes.get("control", {}),
    }
    return with_its_end(written)


def running(record: RunRecord | None = None, **changes: Any) -> Observed:
    """A run that trains, with nothing left to do. ``changes``: of the world; ``record``: with the status of one."""
    record = run(status(Phase.RUNNING)) if record is None else record
    engine = pod("one-inference-x", PodRole.INFERENCE, attempt=0)
    made = changes.pop("children", None) or children(record)
    fields: dict[str, Any] = {"run": record, "children": made, "role_state": state()}
    return observed(*gang(), orchestrator(), engine, **(fields | changes))


def edited(record: RunRecord, **spec: Any) -> RunRecord:
    """The run after an edit that replaces these blocks."""
    return replace(record, generation=record.generation + 1, spec=record.spec | spec)


def planned(world: Observed) -> Plan:
    """A pass over it."""
    return plan(world, SETTINGS, "a token")


def after(world: Observed, made: Plan, **changes: Any) -> Observed:
    """The same world once the plan's status is written. ``changes``: of the world."""
    fields: dict[str, Any] = {"run": replace(world.run, status=made.status)}
    return replace(world, **(fields | changes))


def condition(made: Plan, kind: str) -> dict[str, Any] | None:
    """One of a plan's conditions; None if it is not there."""
    return next((one for one in made.status["conditions"] if one["type"] == kind), None)
