"""The whole of ``status``: written when it differs from what is there, once a pass."""

from collections.abc import Mapping
from typing import Any, get_args

from echorl_core import termination_message
from echorl_core.names import ExitCode, Phase
from echorl_core.termination_message import Preparation, TerminationMessage
from echorl_core.wire.sandboxes import Loss
from echorl_manifest.models.status import MAX_MESSAGE, MAX_REWARD, MAX_SHORT, MAX_TIMELINE, MAX_WAITING
from echorl_operator import names
from echorl_operator.diagnosis import sandboxes
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import Memory
from echorl_operator.observed.records import ContainerPhase, Kind
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.times import from_text, to_text
from echorl_operator.observed.world import Observed
from echorl_operator.status.conditions import conditions
from echorl_operator.status.goodput import goodput_status
from echorl_operator.status.pass_report import PassReport

_FINAL_CODES = frozenset({ExitCode.OK, ExitCode.STOPPED})


def status_of(observed: Observed, memory: Memory, report: PassReport) -> dict[str, Any]:
    """``status`` as it should read now.

    Parts that nobody tells at the moment (the orchestrator does not answer) stay as they were told last.
    """
    before = observed.run.status
    state = observed.role_state
    if state is not None and state.attempt != memory.attempt:
        state = None
    status: dict[str, Any] = {
        "phase": str(report.phase),
        "message": report.message[:MAX_MESSAGE],
        "conditions": conditions(observed, memory, report, state),
        "observedGeneration": observed.run.generation,
        "attempt": memory.attempt,
        "revision": memory.revision,
        "resumeStep": memory.resume_step,
        "step": _step(memory, state, before),
        "restarts": sum(memory.restarts.values()),
        "restartsByRole": dict(memory.restarts),
        "notices": memory.notices or None,
        "lastNotice": memory.last_notice,
        "startTime": to_text(memory.started_at),
        "completionTime": to_text(memory.ended_at),
        "roles": _roles(observed, memory, report),
        "inference": _inference(observed, memory, report),
        "sandboxes": _sandboxes(observed, report, state),
        "goodput": goodput_status(state) or before.get("goodput"),
        "timeline": _timeline(observed, memory, report),
        "control": memory.control(),
        **_from_state(state, before, report.preparation),
    }
    if (message := _final_message(observed, memory.attempt)) is not None:
        status |= _at_the_end(message, status)
    if memory.model_commit:
        status["model"] = {"revision": memory.model_commit}
    return {key: value for key, value in status.items() if value not in (None, "", {}, [])}


def _final_message(observed: Observed, attempt: int) -> TerminationMessage | None:
    """What this attempt's orchestrator said when it finished or stopped on request; None if it did neither."""
    for pod in observed.of(PodRole.ORCHESTRATOR):
        for container in pod.containers:
            if (container.name, container.phase) != (PodRole.ORCHESTRATOR, ContainerPhase.TERMINATED):
                continue
            message = termination_message.read(container.message)
            if message is not None and message.attempt == attempt and message.exit_code in _FINAL_CODES:
                return message
    return None


def _at_the_end(message: TerminationMessage, status: Mapping[str, Any]) -> dict[str, Any]:
    """What the orchestrator report at its end: between its last poll and that it may have trained and saved."""
    told: dict[str, Any] = {}
    if message.step is not None:
        told = {"step": message.step, "policy": {**(status.get("policy") or {}), "trained": message.step}}
    if message.reward is not None:
        told["reward"] = _decimal(message.reward)
    saved = message.saved
    if saved is not None and (newest := _checkpoint(saved.step, saved.committed_at, saved.size_bytes)) is not None:
        told["checkpoint"] = newest
    return told


def _step(memory: Memory, state: RoleState | None, before: Mapping[str, Any]) -> int | None:
    """Where the run stands now: after a restart it goes back to the step that it resumed from."""
    if state is not None and state.step is not None:
        return state.step
    if memory.prepared == memory.attempt and memory.resume_step is not None and before.get("attempt") != memory.attempt:
        return memory.resume_step
    step = before.get("step")
    return step if isinstance(step, int) else None


def _from_state(state: RoleState | None, before: Mapping[str, Any], preparation: Preparation | None) -> dict[str, Any]:
    kept = {key: before.get(key) for key in ("policy", "checkpoint", "reward")}
    if preparation is not None:
        # One that status knew may be damaged, or gone.
        newest = next(iter(preparation.committed), None)
        kept["checkpoint"] = (
            None if newest is None else _checkpoint(newest.step, newest.committed_at, newest.size_bytes)
        )
    if state is None:
        return kept
    if state.reward is not None:
        kept["reward"] = _decimal(state.reward)
    if state.trained is not None:
        served = None if state.served_min is None else {"min": state.served_min, "max": state.served_max}
        kept["policy"] = {
            key: value
            for key, value in (
                ("trained", state.trained),
                ("served", served),
                ("stalenessMax", state.staleness_max),
            )
            if value is not None
        }
    saved = state.checkpoint
    if saved is not None:
        committed = _checkpoint(saved.step, saved.committed_at, saved.size_bytes)
        kept["checkpoint"] = committed or kept["checkpoint"]
    return kept


def _decimal(reward: float) -> str:
    """Write a reward in thousandths, or in six digits and an exponent if that is longer than the API server takes."""
    text = f"{reward:.3f}"
    return text if len(text) <= MAX_REWARD else f"{reward:.6g}"


def _checkpoint(step: int, committed_at: str, size_bytes: int) -> dict[str, Any] | None:
    """As it stands in status; None for one without a time that the API server takes."""
    at = to_text(from_text(committed_at))
    path = f"checkpoints/step_{step:06d}"
    return None if at is None else {"step": step, "committedAt": at, "sizeBytes": size_bytes, "path": path}


def _roles(observed: Observed, memory: Memory, report: PassReport) -> dict[str, Any]:
    active = report.phase not in (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED)
    desired = {
        PodRole.TRAINER: report.trainer_pods if active and memory.attempt else 0,
        PodRole.INFERENCE: report.engines if active and memory.prepared else 0,
        PodRole.ORCHESTRATOR: 1 if active and memory.prepared == memory.attempt and memory.attempt else 0,
    }
    if report.servers:
        desired[PodRole.ENVIRONMENT] = report.servers if active and memory.attempt else 0
    return {
        str(role): {
            "ready": sum(pod.ready and pod.meta.deleted_at is None for pod in observed.of(role)),
            "desired": count,
        }
        for role, count in desired.items()
    }


def _sandboxes(observed: Observed, report: PassReport, state: RoleState | None) -> dict[str, Any] | None:
    if not sandboxes.are_pods(observed):
        return None
    before = observed.run.status.get("sandboxes") or {}
    found = sandboxes.tally(observed)
    waiting: list[dict[str, Any]] = [
        {"reason": waits.reason, "count": waits.count, "message": waits.message[:MAX_SHORT]} for waits in found.waiting
    ]
    if state is None and report.phase is Phase.RUNNING:
        waiting += [entry for entry in before.get("waiting", ()) if entry.get("reason") in sandboxes.UNMADE]
    lost = before.get("lost")
    if state is not None and state.sandboxes is not None:
        counts = state.sandboxes.lost
        lost = {loss: counts[loss] for loss in get_args(Loss) if loss in counts}
    status = {"alive": found.alive, "starting": found.starting, "waiting": waiting[:MAX_WAITING], "lost": lost}
    if observed.run.block("sandboxes").get("warmReplicas"):
        status |= {"warm": found.warm, "claimed": found.claimed}
    return {key: value for key, value in status.items() if value not in (None, {}, [])}


def _inference(observed: Observed, memory: Memory, report: PassReport) -> dict[str, Any]:
    engines = observed.child(Kind.DEPLOYMENT, names.inference(observed.run.key.name))
    selector = f"{names.LABEL_RUN_UID}={observed.run.uid},{names.LABEL_ROLE}={PodRole.INFERENCE}"
    told = {"replicas": 0 if engines is None else engines.replicas, "selector": selector}
    before = (observed.run.status.get("inference") or {}).get("autoscale")
    why = None if memory.autoscaling is None else report.autoscale[:MAX_SHORT] or before
    return told | ({"autoscale": why} if why else {})


def _timeline(observed: Observed, memory: Memory, report: PassReport) -> list[dict[str, Any]]:
    entries = [dict(entry) for entry in observed.run.status.get("timeline", [])]
    newest = entries[-1] if entries else {}
    if (newest.get("phase"), newest.get("attempt")) != (str(report.phase), memory.attempt):
        entries.append(
            {
                "phase": str(report.phase),
                "since": to_text(observed.now),
                "attempt": memory.attempt,
                "reason": report.reason or str(report.phase),
            }
        )
    return entries[-MAX_TIMELINE:]
