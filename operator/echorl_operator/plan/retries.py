"""Controllers that could not make a pod try again ever more rarely, after up to 16 minutes: too late once it could be.

A change of the workload makes its controller try at once, so one annotation is changed every half minute.
"""

import json
from typing import Any

from echorl_operator import names
from echorl_operator.diagnosis.obstacles import without_pods
from echorl_operator.observed.records import ChildRecord
from echorl_operator.observed.times import from_text, to_text
from echorl_operator.plan.actions import RetryController
from echorl_operator.plan.builder import PlanBuilder

EVERY_S = 30.0


def retry_controllers(builder: PlanBuilder) -> None:
    """Ask for another try of every workload that gets no pods, if the last one is long ago."""
    for child in without_pods(builder.observed):
        asked_at = _asked_at(child)
        if asked_at > builder.now:
            # Nobody has asked in a time to come.
            asked_at = 0.0
        due = max(_blocked_since(builder), asked_at) + EVERY_S
        if builder.now >= due:
            at = to_text(builder.now)
            builder.do(RetryController(str(child.kind), child.meta.name, child.meta.uid, str(at)))
            due = builder.now + EVERY_S
        builder.wake(due)


def _blocked_since(builder: PlanBuilder) -> float:
    conditions: list[dict[str, Any]] = builder.observed.run.status.get("conditions", [])
    blocked = (entry for entry in conditions if entry.get("type") == "Blocked" and entry.get("status") == "True")
    since = next((from_text(entry.get("lastTransitionTime")) for entry in blocked), None)
    return builder.now if since is None else since


def _asked_at(child: ChildRecord) -> float:
    metadata = json.loads(child.body).get("metadata", {})
    return from_text((metadata.get("annotations") or {}).get(names.ANNOTATION_RETRY)) or 0.0
