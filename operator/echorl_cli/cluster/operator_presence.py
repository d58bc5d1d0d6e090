"""Whether an operator looks at a run at all: if none does, its status tells of the past. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from echorl_operator.diagnosis.durations import span
from echorl_operator.names import PodRole
from echorl_operator.observed.times import from_text
from echorl_operator.observed.world import Observed

SOON_S = 10.0
"""Seconds after which an operator at work has looked at a changed run."""


def unseen(run: Mapping[str, Any], now: float) -> str:
    """Why the status is not of the run as it stands; empty if it is.

    Args:
        run: the object.
        now: seconds since the epoch.
    """
    meta, status = run["metadata"], run.get("status") or {}
    generation, seen = int(meta.get("generation", 0)), seen_generation(status)
    ago = now - (_changed_at(meta) or now)
    if seen >= generation:
        return ""
    never = seen == 0
    what = "it has no status" if never else f"observedGeneration {seen} of generation {generation}"
    when = f"made {span(ago)} ago" if never else f"since it was changed {span(ago)} ago"
    if ago < SOON_S:
        return f"the operator has not looked at this run yet, {when}: {what}"
    asked = f"is it installed, and does it watch namespace {meta.get('namespace', '')}?"
    return f"the operator has not looked at this run{',' if never else ''} {when}: {what}; {asked}"


def seen_generation(status: Mapping[str, Any]) -> int:
    """The newest generation that an operator looked at; older ones told one that they refused in conditions alone."""
    told = [
        status.get("observedGeneration"),
        *(condition.get("observedGeneration") for condition in status.get("conditions") or ()),
    ]
    return max((number for number in told if isinstance(number, int)), default=0)


def differing(observed: Observed) -> str:
    """Where the status does not count pods as they are; empty if it does. It is written anew within seconds."""
    roles = observed.run.status.get("roles") or {}
    parts = []
    for role in PodRole:
        told = (roles.get(str(role)) or {}).get("ready")
        ready = sum(pod.ready and pod.meta.deleted_at is None for pod in observed.of(role))
        if isinstance(told, int) and told != ready:
            parts.append(f"{told} {role} {'pod' if told == 1 else 'pods'} ready, there are {ready}")
    return "; ".join(parts)


def expired_lease(leases: Iterable[Mapping[str, Any]], now: float) -> str:
    """Say that no election which may be of this run's operator has a leader; empty if one has, or none is seen."""
    ends = []
    for lease in leases:
        spec = lease.get("spec") or {}
        renewed = from_text(spec.get("renewTime"))
        if renewed is not None:
            # One without a holder was given up.
            ends.append(renewed + (float(spec.get("leaseDurationSeconds") or 0) if spec.get("holderIdentity") else 0.0))
    if not ends or max(ends) >= now:
        return ""
    return f"the operator's lease ended {span(now - max(ends))} ago"


def _changed_at(meta: Mapping[str, Any]) -> float | None:
    """When the spec was written last, as far as that is kept; else when the run was made."""
    fields = meta.get("managedFields") or ()
    times = [from_text(entry.get("time")) for entry in fields if not entry.get("subresource")]
    return max((time for time in times if time is not None), default=from_text(meta.get("creationTimestamp")))
