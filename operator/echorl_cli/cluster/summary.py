"""A run's state as one JSON object: status, and what follows from it at a moment (ages, durations). Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from echorl_cli.cluster.operator_presence import seen_generation, unseen
from echorl_core.names import Phase
from echorl_operator.observed.times import from_text

_ENDED = (Phase.SUCCEEDED, Phase.FAILED)


def summary(run: Mapping[str, Any], now: float) -> dict[str, Any]:
    """What ``echorl status`` shows. Keys are camelCase as in the manifest; ages and durations are in seconds.

    Args:
        run: the object.
        now: seconds since the epoch.
    """
    meta, spec = run["metadata"], run.get("spec") or {}
    status = {key: part for key, part in (run.get("status") or {}).items() if part is not None}
    checkpoint = status.get("checkpoint")
    if checkpoint is not None:
        checkpoint = {**checkpoint, "ageSeconds": _age(checkpoint.get("committedAt"), now)}
    return {
        "name": meta["name"],
        "namespace": meta.get("namespace", ""),
        "uid": meta.get("uid", ""),
        "ageSeconds": _age(meta.get("creationTimestamp"), now),
        "generation": meta.get("generation"),
        "seenGeneration": seen_generation(status),
        "notice": unseen(run, now),
        "phase": status.get("phase", str(Phase.PENDING)),
        "message": status.get("message", ""),
        "attempt": status.get("attempt", 0),
        "resumeStep": status.get("resumeStep"),
        "step": status.get("step"),
        "maxSteps": spec.get("maxSteps"),
        "reward": status.get("reward"),
        "policy": status.get("policy"),
        "checkpoint": checkpoint,
        "roles": status.get("roles", {}),
        "autoscale": (status.get("inference") or {}).get("autoscale"),
        "sandboxes": status.get("sandboxes"),
        "goodput": status.get("goodput"),
        "restarts": status.get("restarts", 0),
        "restartsByRole": status.get("restartsByRole", {}),
        "conditions": list(status.get("conditions", ())),
        "timeline": timeline(status.get("timeline", ()), now),
    }


def timeline(entries: Sequence[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """Phases with ``seconds`` each: until the next began, and of the last one until now, unless the run has ended."""
    phases = []
    for number, entry in enumerate(entries):
        following = entries[number + 1] if number + 1 < len(entries) else None
        begun = from_text(entry.get("since"))
        until = now if following is None else from_text(following.get("since"))
        over = following is None and entry.get("phase") in _ENDED
        seconds = None if over or begun is None or until is None else max(0, round(until - begun))
        phases.append({**entry, "seconds": seconds})
    return phases


def _age(time: object, now: float) -> int | None:
    then = from_text(time)
    return None if then is None else max(0, round(now - then))
