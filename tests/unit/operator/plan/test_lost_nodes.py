"""Pods that do not end."""

from echorl_operator.names import PodRole
from echorl_operator.plan import lost_nodes
from echorl_operator.plan.actions import Delete
from echorl_operator.plan.builder import PlanBuilder
from echorl_testing.operator.observed_worlds import NOW, observed, pod, run
from echorl_testing.operator.operator_world import SETTINGS

LONG_AGO, JUST_NOW = NOW - 61.0, NOW - 59.0
ATTEMPT_2 = {"attempt": 2}


def builder(*pods, **changes) -> PlanBuilder:
    return PlanBuilder(observed(*pods, **changes), SETTINGS, "a token")


def test_a_pod_hangs_a_minute_after_its_grace_period():
    late = pod("one-trainer-0", PodRole.TRAINER, deleted_at=LONG_AGO)
    soon = pod("one-trainer-1", PodRole.TRAINER, deleted_at=JUST_NOW)
    made = builder()
    assert lost_nodes.hung(made, [late, soon, pod("one-trainer-2", PodRole.TRAINER)]) == [late]
    assert made.wakes == [JUST_NOW + 61.0]


def test_it_is_told_with_its_node_and_left_alone():
    made = builder()
    said = lost_nodes.handle_hung_pods(made, [pod("one-trainer-0", PodRole.TRAINER, deleted_at=LONG_AGO, node="gpu-7")])
    assert "one-trainer-0 does not end on gpu-7" in said
    assert made.problems["NodeLost"] == ("PodsHang", said)
    assert not made.actions


def test_it_is_removed_by_force_where_the_manifest_says_so():
    made = builder(run=run(failurePolicy={"forceDeleteOnNodeLoss": True}))
    hung = pod("one-trainer-0", PodRole.TRAINER, deleted_at=LONG_AGO)
    lost_nodes.handle_hung_pods(made, [hung])
    (delete,) = made.actions
    assert isinstance(delete, Delete)
    assert (delete.name, delete.uid, delete.grace_s) == ("one-trainer-0", hung.meta.uid, 0)
    assert made.problems["NodeLost"][0] == "ForceDeleted"


def test_an_orchestrator_or_prepare_pod_that_hangs_ends_the_attempt():
    for role in (PodRole.ORCHESTRATOR, PodRole.PREPARE):
        hung = pod(f"one-{role}", role, attempt=2, deleted_at=LONG_AGO)
        assert f"one-{role} does not end on node-1" in (lost_nodes.lost_alone(builder(hung, run=run(ATTEMPT_2))) or "")
        older = pod(f"one-{role}", role, attempt=1, deleted_at=LONG_AGO)
        assert lost_nodes.lost_alone(builder(older, run=run(ATTEMPT_2))) is None
    trainer = pod("one-trainer-0", PodRole.TRAINER, attempt=2, deleted_at=LONG_AGO)
    assert lost_nodes.lost_alone(builder(trainer, run=run(ATTEMPT_2))) is None
