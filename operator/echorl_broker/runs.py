"""What a run's object says of its sandboxes: the one truth, whatever who asks for them says. Pure."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from echorl_core.names import Phase
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_manifest.models.base import duration_seconds, quantity_number
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.observed.runs import RunRecord

OF_AN_EPISODE = 4
"""Sandboxes that an episode may have at the same time, over all episodes."""
_GROUPS, _GROUP_SIZE, _MAX_STEPS = 16, 16, 500
"""What a run that does not say has: groups of a batch, episodes of a group, steps."""
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})


class NoSandboxes(Exception):
    """A run has none; the message says why."""


def why_closed(run: RunRecord) -> str | None:
    """Why a run has no use for sandboxes (any more); None if it has."""
    if run.deleted_at is not None:
        return "its run is being deleted"
    phase = run.status.get("phase")
    return f"its run is {phase}" if phase in _ENDED else None


def provider_of(run: RunRecord) -> str:
    """Who makes the run's sandboxes, as it says, whether or not that may be."""
    return str(run.block("sandboxes").get("provider"))


def sandboxes_of(run: RunRecord, providers: Collection[str]) -> Sandboxes:
    """What the run says of its sandboxes.

    Args:
        run: as the API server has it.
        providers: that the broker is one for.

    Raises:
        NoSandboxes: it has none of these.
    """
    if (closed := why_closed(run)) is not None:
        raise NoSandboxes(f"run {run.key.name}: {closed}")
    if "sandboxes" not in run.spec:
        raise NoSandboxes(f"run {run.key.name}: it has no spec.sandboxes")
    try:
        sandboxes = Sandboxes.model_validate(run.block("sandboxes"))
    except ValidationError as error:
        raise NoSandboxes(f"run {run.key.name}: spec.sandboxes: {error}") from error
    if sandboxes.provider not in providers:
        found = f"spec.sandboxes.provider: found {sandboxes.provider}, accepted is {' or '.join(providers)}"
        raise NoSandboxes(f"run {run.key.name}: {found}")
    return sandboxes


def within(wanted: Wanted, sandboxes: Sandboxes) -> Wanted:
    """What was asked for, cut to what the run allows."""
    most, asked = sandboxes.resources, wanted.limits
    return Wanted(
        run_uid=wanted.run_uid,
        image=wanted.image,
        workdir=wanted.workdir,
        limits=Limits(
            cpu=min(asked.cpu, most.cpu),
            memory_bytes=min(asked.memory_bytes, int(quantity_number(most.memory))),
            disk_bytes=min(asked.disk_bytes, int(quantity_number(most.disk))),
            processes=min(asked.processes, most.processes),
        ),
        ttl_s=min(wanted.ttl_s, duration_seconds(sandboxes.ttl)),
        gateway=wanted.gateway,
        volumes=wanted.volumes,
    )


def most_pods(sandboxes: Sandboxes) -> int:
    """Sandboxes that the run may have at the same time."""
    return OF_AN_EPISODE * sandboxes.concurrency


def keeps_warm(run: RunRecord) -> bool:
    """Whether the run, as its object stands, wants sandboxes kept ready."""
    return provider_of(run) in {"pod", "agent-sandbox"} and bool(run.block("sandboxes").get("warmReplicas"))


def most_warm(run: RunRecord, sandboxes: Sandboxes) -> int:
    """Sandboxes to keep ready: no more than episodes are in flight at once, nor than the steps to come still take."""
    algorithm: Mapping[str, Any] = run.block("algorithm")
    if "tokenBatchSize" in algorithm:
        return min(sandboxes.warm_replicas, sandboxes.concurrency)
    batch: int = algorithm.get("batchSize") or _GROUPS * algorithm.get("groupSize", _GROUP_SIZE)
    steps_left: int = max(0, run.spec.get("maxSteps", _MAX_STEPS) - run.status.get("step", 0))
    in_flight = math.ceil(batch * algorithm.get("oversampling", 1.0))
    to_come: int = min(sandboxes.warm_replicas, in_flight, batch * steps_left)
    return to_come


def pull_secrets(run: RunRecord) -> list[str]:
    """Names of the registry credentials that the run names."""
    listed = run.spec.get("imagePullSecrets")
    entries = listed if isinstance(listed, list) else []
    return [entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
