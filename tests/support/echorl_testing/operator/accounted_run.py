"""One run with 2 trainer pods of 8 GPUs and an engine of 2, as it is seen at times of its life."""

from typing import Any

from echorl_core.names import Phase
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.accounting.runs import RunAccounts
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.runs import RunKey
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed
from echorl_testing.operator.observed_worlds import NOW, observed, pod, run

KEY = RunKey("ns", "one")
GPU = "nvidia.com/gpu"
LOST = Restart("trainer", Cause.CRASHED)


def gang(**changes: Any) -> list[PodRecord]:
    """The trainer's pods."""
    return [pod(f"one-trainer-{i}", PodRole.TRAINER, wants=((GPU, "8"),), **changes) for i in range(2)]


def engine(**changes: Any) -> PodRecord:
    """The engine's pod."""
    return pod("one-inference-x", PodRole.INFERENCE, wants=(("cpu", "4"), (GPU, "2")), **changes)


def orchestrator(**changes: Any) -> PodRecord:
    """The orchestrator's pod."""
    return pod("one-orchestrator", PodRole.ORCHESTRATOR, **changes)


def at(seconds: float, phase: str, *pods: PodRecord, step: int | None = None, **status: Any) -> Observed:
    """The run so many seconds after its first look."""
    attempt = status.get("attempt", 1)
    state = None if step is None else told(step, attempt)
    written = {"phase": phase, "attempt": attempt, **status}
    record = run({key: value for key, value in written.items() if value is not None})
    return observed(*pods, run=record, now=NOW + seconds, role_state=state)


def told(step: int, attempt: int) -> RoleState:
    """What the orchestrator says at a step."""
    return RoleState(
        attempt=attempt,
        phase=Phase.RUNNING,
        step=step,
        waiting_for="",
        reward=None,
        trained=None,
        served_min=None,
        served_max=None,
        staleness_max=None,
        checkpoint=None,
        abandoned="",
        engines=(),
        failure_code=None,
        failure_message="",
        last_step_at=NOW,
        seen_at=NOW,
    )


def entry(phase: str, attempt: int) -> dict[str, Any]:
    """Of the timeline."""
    return {"phase": phase, "attempt": attempt, "since": to_text(NOW), "reason": "x"}


def seconds(accounts: RunAccounts, after: float) -> dict[tuple[str, str], float]:
    """GPU-seconds by role and use, those that are not 0, ``after`` so many seconds."""
    return {
        (str(role), str(state)): value for (role, state), value in accounts.gpu_seconds(NOW + after).items() if value
    }


PREPARED = {"resumeStep": 0, "control": {"preparedAttempt": 1}}
