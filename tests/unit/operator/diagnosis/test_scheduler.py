import pytest

from echorl_operator.diagnosis import scheduler

PREEMPTION = (
    " no new claims to deallocate, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint(s).",
            "of 5 nodes, 3 have too little nvidia.com/gpu free, 2 have a taint that it does not tolerate",
        ),
        (
            "0/5 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, "
            "1 Insufficient cpu, 3 node(s) had untolerated taint {team: vision}.",
            "of 5 nodes, 3 have the taint team=vision that it does not tolerate, "
            "1 has the taint node.kubernetes.io/not-ready that it does not tolerate, 1 has too little cpu free",
        ),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", "of 1 node, 1 is cordoned"),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "of 2 nodes, 2 do not match its node selector or affinity",
        ),
        ("0/2 nodes are available: 2 something, of a kind.", "of 2 nodes, 2: something, of a kind"),
        ("no nodes available to schedule pods", "the cluster has no nodes"),
        ("anything else.", "anything else"),
    ],
)
@pytest.mark.parametrize("after", ["", PREEMPTION])
def test_the_scheduler_is_read(said: str, words: str, after: str) -> None:
    assert scheduler.read(said + after).words == words


def test_resources_that_nodes_lack() -> None:
    verdict = scheduler.read("0/9 nodes are available: 2 Insufficient memory, 7 Insufficient nvidia.com/gpu.")
    assert (verdict.nodes, verdict.resources) == (9, ("nvidia.com/gpu", "memory"))


def test_claims_that_are_missing_or_unbound() -> None:
    missing = 'persistentvolumeclaim "data" not found.'
    assert scheduler.read(f"0/1 nodes are available: {missing}").missing_claim == "data"
    assert scheduler.read(f"0/1 nodes are available: {missing}{PREEMPTION}").missing_claim == "data"
    assert scheduler.read('persistentvolumeclaim "data" not found').missing_claim == "data"
    unbound = scheduler.read(f"0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.{PREEMPTION}")
    assert unbound.unbound
    assert unbound.words == "pod has unbound immediate PersistentVolumeClaims"
