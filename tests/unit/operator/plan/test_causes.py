from dataclasses import replace
from typing import Any

import pytest

from echorl_core.names import Phase
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodPhase, PodRecord
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.causes import cause_of
from echorl_operator.plan.edits import begin_attempt
from echorl_operator.plan.gang import Gang
from echorl_testing.operator.observed_worlds import NOW, ended, observed, pod
from echorl_testing.operator.rendered import SETTINGS


def rank(index: int, code: int, **changes: Any) -> PodRecord:
    return ended(f"one-trainer-{index}", PodRole.TRAINER, code, **changes)


def gang(*pods: PodRecord, departed: tuple[PodRecord, ...] = ()) -> Gang:
    return Gang.of(observed(*pods, departed=departed), attempt=1, wanted=2)


ALIVE = pod("one-trainer-1", PodRole.TRAINER)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (gang(rank(0, 1), ALIVE), Cause.CRASHED),
        (gang(rank(0, 137), ALIVE), Cause.SIGNALLED),
        (gang(rank(0, 137, container={"reason": "OOMKilled"}), rank(1, 1)), Cause.OUT_OF_MEMORY),
        (gang(rank(1, 1), ALIVE, departed=(rank(0, 139),)), Cause.SIGNALLED),
        (gang(rank(0, 143, disrupted="PreemptionByScheduler"), ALIVE), Cause.DISRUPTED),
        (gang(pod("one-trainer-0", PodRole.TRAINER, deleted_at=NOW), ALIVE), Cause.POD_LOST),
        (
            gang(pod("one-trainer-0", PodRole.TRAINER, deleted_at=NOW, disrupted="DeletionByTaintManager"), ALIVE),
            Cause.DISRUPTED,
        ),
        (
            gang(pod("one-trainer-0", PodRole.TRAINER, phase=PodPhase.FAILED, reason="Evicted", containers=()), ALIVE),
            Cause.EVICTED,
        ),
        (
            gang(pod("one-trainer-0", PodRole.TRAINER, phase=PodPhase.FAILED, reason="NodeLost", containers=())),
            Cause.POD_LOST,
        ),
        (gang(replace(ALIVE, gated=True)), Cause.POD_LOST),
        (gang(ALIVE), Cause.POD_LOST),
        (gang(rank(0, 0), rank(1, 0)), Cause.FINISHED_EARLY),
    ],
)
def test_cause_of_a_lost_gang(found: Gang, cause: Cause) -> None:
    assert cause_of(found, None) is cause


def test_cause_of_an_orchestrators_end() -> None:
    dead = ended("one-orchestrator", PodRole.ORCHESTRATOR, 1)
    assert cause_of(gang(ALIVE, pod("one-trainer-0", PodRole.TRAINER)), dead) is Cause.CRASHED


@pytest.mark.parametrize(
    ("phase", "reason", "known", "restart"),
    [
        (Phase.PREPARING, "AttemptBegins", None, None),
        (Phase.RESTARTING, "Edited", None, Restart("trainer", Cause.EDITED)),
        (Phase.RESTARTING, "NodeLost", None, Restart("trainer", Cause.NODE_LOST)),
        (Phase.RESTARTING, "Another", None, Restart("trainer", Cause.UNKNOWN)),
        (Phase.RESTARTING, "GangRestarted", Restart("trainer", Cause.STALLED), Restart("trainer", Cause.STALLED)),
    ],
)
def test_an_attempt_that_begins_says_what_it_restarts(
    phase: Phase, reason: str, known: Restart | None, restart: Restart | None
) -> None:
    builder = PlanBuilder(observed(), SETTINGS, "a token")
    builder.restart = known
    begin_attempt(builder, EchoRLRunSpec.model_validate(builder.observed.run.spec), phase, reason, "why")
    assert builder.memory.attempt == 1
    assert builder.restart == restart
