"""``status.goodput``: the orchestrator's account of time, as the API server takes it."""

import math
from collections.abc import Mapping
from typing import Any

from echorl_core.wire.goodput import INFERENCE, THROWN_AWAY, TRAINER, TimeState
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.times import from_text, to_text

_MOST = 2**53


def goodput_status(state: RoleState | None) -> dict[str, Any] | None:
    """What is told now; None if nothing is. States that this version does not know are left out."""
    told = None if state is None else state.goodput
    measured_at = None if told is None else to_text(from_text(told.measured_at))
    if told is None or measured_at is None:
        return None
    status: dict[str, Any] = {
        "measuredAt": measured_at,
        "gpuSeconds": {role: _counts(told.gpu_seconds.get(role, {}), TimeState) for role in (TRAINER, INFERENCE)},
        "untrainedTokens": _counts(told.untrained_tokens, THROWN_AWAY),
    }
    if told.useful_ratio is not None and 0 <= told.useful_ratio <= 1:
        status["usefulRatio"] = f"{told.useful_ratio:.3f}"
    return status


def _counts(told: Mapping[str, float], known: Any) -> dict[str, int]:
    """Whole numbers above 0, by state."""
    finite = ((str(state), told.get(state, 0.0)) for state in known)
    counts = {state: min(_MOST, round(value)) for state, value in finite if math.isfinite(value)}
    return {state: count for state, count in counts.items() if count > 0}
