"""What an ended pod said is in status before the pod is deleted."""

import msgspec

from echorl_core.names import ExitCode
from echorl_core.termination_message import SavedCheckpoint, encoded, message_of_end
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, PodPhase
from echorl_operator.plan.actions import Delete, Plan
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import container, observed, pod, run

SAVED = SavedCheckpoint(step=74, committed_at="2026-01-01T00:00:00Z", size_bytes=9)
STATUS = {"attempt": 1, "phase": "Running", "step": 72, "control": {"preparedAttempt": 1, "admittedAttempt": 1}}


def suspended(orchestrator_ended: bool) -> Plan:
    words = message_of_end("orchestrator", ExitCode.STOPPED, "stopped on request", attempt=1, step=74)
    told = encoded(msgspec.structs.replace(words, saved=SAVED)).decode()
    over = container("orchestrator", ContainerPhase.TERMINATED, exit_code=int(ExitCode.STOPPED), message=told)
    one = pod("one-orchestrator", PodRole.ORCHESTRATOR)
    if orchestrator_ended:
        one = pod("one-orchestrator", PodRole.ORCHESTRATOR, phase=PodPhase.FAILED, ready=False, containers=(over,))
    return plan(observed(one, run=run(STATUS, suspend=True)), Settings(operator_version="1"), "t")


def test_the_last_checkpoint_stands_in_status_first() -> None:
    made = suspended(orchestrator_ended=True)
    assert [one.name for one in made.actions if isinstance(one, Delete)] == ["one-orchestrator"]
    assert made.status["checkpoint"]["step"] == 74
    assert made.fence


def test_status_comes_last_where_nothing_is_lost() -> None:
    made = suspended(orchestrator_ended=False)
    assert not any(isinstance(one, Delete) for one in made.actions)
    assert not made.fence
