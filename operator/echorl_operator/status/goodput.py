"""``status.goodput``: the orchestrator's account of time, as the API server takes it."""

import math
from collections.abc import Iterable, Mapping

from echorl_core.wire.goodput import INFERENCE, THROWN_AWAY, TRAINER, TimeState
from echorl_operator.observed.roles import RoleState

_MOST = 2**53


def goodput_status(state: RoleState | None) -> dict[str, int] | None:
    """What is told now, one flat map; None if nothing is. States that this version does not know are left out."""
    told = None if state is None else state.goodput
    if told is None:
        return None
    status: dict[str, int] = {}
    if told.useful_ratio is not None and 0 <= told.useful_ratio <= 1:
        status["usefulPercent"] = round(100 * told.useful_ratio)
    for role in (TRAINER, INFERENCE):
        status |= _counts(role, told.gpu_seconds.get(role, {}), TimeState)
    return status | _counts("tokens", told.untrained_tokens, THROWN_AWAY)


def _counts(prefix: str, told: Mapping[str, float], known: Iterable[TimeState]) -> dict[str, int]:
    """Whole numbers above 0, by prefix and state."""
    finite = {str(state): told.get(state, 0.0) for state in known if math.isfinite(told.get(state, 0.0))}
    counts = {f"{prefix}/{state}": min(_MOST, round(value)) for state, value in finite.items()}
    return {key: count for key, count in counts.items() if count > 0}
