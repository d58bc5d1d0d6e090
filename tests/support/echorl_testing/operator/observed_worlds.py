"""Records of one run's world, made by hand: each maker takes what a test is about and fills in the rest."""

from typing import Any

from echorl_core.termination_message import encoded, message_of_end
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, ContainerRecord, Meta, PodPhase, PodRecord
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.observed.times import to_text
from echorl_operator.observed.world import Observed

NOW = 1_800_000_000.0
RUN_UID = "run-uid"


def meta(name: str, **changes: Any) -> Meta:
    """Of a child of run ``one``."""
    fields: dict[str, Any] = {
        "namespace": "ns",
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "7",
        "generation": 1,
        "run": "one",
        "run_uid": RUN_UID,
        "owner_uid": RUN_UID,
        "created_at": NOW - 90.0,
        "deleted_at": None,
    }
    return Meta(**(fields | changes))


def container(name: str, phase: ContainerPhase = ContainerPhase.RUNNING, **changes: Any) -> ContainerRecord:
    """A container."""
    fields: dict[str, Any] = {
        "reason": "",
        "message": "",
        "exit_code": None,
        "signal": None,
        "restarts": 0,
        "ready": phase is ContainerPhase.RUNNING,
        "since": NOW - 30.0,
    }
    return ContainerRecord(name=name, phase=phase, **(fields | changes))


def pod(
    name: str, role: PodRole | None, *, attempt: int = 1, deleted_at: float | None = None, **changes: Any
) -> PodRecord:
    """A running, ready pod; ``role`` None: of a sandbox."""
    fields: dict[str, Any] = {
        "meta": meta(name, deleted_at=deleted_at),
        "role": role,
        "attempt": attempt,
        "index": None,
        "phase": PodPhase.RUNNING,
        "reason": "",
        "message": "",
        "gated": False,
        "node": "node-1",
        "ip": "10.0.0.1",
        "unscheduled": "",
        "ready": True,
        "ready_since": NOW - 20.0,
        "disrupted": "",
        "containers": (container(str(role)),),
    }
    return PodRecord(**(fields | changes))


def ended(name: str, role: PodRole, code: int, message: str = "", *, attempt: int = 1, **changes: Any) -> PodRecord:
    """A pod whose process ended with ``code``, and with last words if ``message`` is one."""
    said = encoded(message_of_end(str(role), code, message, attempt=attempt)).decode() if message else ""
    phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
    main = container(str(role), ContainerPhase.TERMINATED, exit_code=code, message=said, **changes.pop("container", {}))
    return pod(name, role, attempt=attempt, phase=phase, ready=False, containers=(main,), **changes)


def run(status: dict[str, Any] | None = None, **spec: Any) -> RunRecord:
    """Run ``one``; ``spec`` replaces blocks of a small valid one."""
    small: dict[str, Any] = {
        "model": {"name": "/models/tiny", "renderer": "compact", "maxModelLen": 256},
        "environments": {"train": [{"name": "digits", "type": "builtin:digits"}]},
        "trainer": {"replicas": 2, "gpusPerReplica": 0},
        "inference": {"replicas": 1, "gpusPerReplica": 0},
    }
    return RunRecord(
        key=RunKey("ns", "one"),
        uid=RUN_UID,
        resource_version="5",
        generation=1,
        created_at=NOW - 100.0,
        deleted_at=None,
        labels={},
        annotations={},
        spec=small | spec,
        status=with_its_end(status or {}),
    )


def with_its_end(status: dict[str, Any]) -> dict[str, Any]:
    """A status; that of a run which has ended says when."""
    ended = status.get("phase") in ("Succeeded", "Failed")
    return {"completionTime": to_text(NOW), **status} if ended else status


def observed(*pods: PodRecord, **changes: Any) -> Observed:
    """A world of these pods."""
    fields: dict[str, Any] = {
        "run": run(),
        "pods": pods,
        "children": (),
        "departed": (),
        "role_state": None,
        "refusal": "",
        "now": NOW,
    }
    return Observed(**(fields | changes))
