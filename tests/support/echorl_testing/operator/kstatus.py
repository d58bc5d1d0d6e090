"""What tools that judge objects by kstatus make of one whose kind they do not know."""

from collections.abc import Mapping
from typing import Any, Literal

Judgement = Literal["Terminating", "InProgress", "Failed", "Current"]


def judged(run: Mapping[str, Any]) -> Judgement:
    """Its rules, in its order: deletion, generation, Reconciling, Stalled, Ready; an object without any is current."""
    meta, status = run["metadata"], run.get("status") or {}
    if meta.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != meta["generation"]:
        return "InProgress"
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"
