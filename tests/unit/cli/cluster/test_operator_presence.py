from typing import Any

from echorl_cli.cluster.operator_presence import differing, expired_lease, seen_generation, unseen
from echorl_operator.names import PodRole
from echorl_operator.observed.times import to_text
from echorl_testing.operator.observed_worlds import NOW, observed, pod, run


def made(status: dict[str, Any] | None, *, generation: int = 1, edited_ago: float = 100.0) -> dict[str, Any]:
    fields = [
        {"manager": "kubectl", "time": to_text(NOW - edited_ago)},
        {"manager": "echorl-operator", "subresource": "status", "time": to_text(NOW)},
    ]
    meta = {
        "name": "one",
        "namespace": "ns",
        "generation": generation,
        "creationTimestamp": to_text(NOW - 200),
        "managedFields": fields,
    }
    return {"metadata": meta, "status": status} if status is not None else {"metadata": meta}


def test_a_run_that_nobody_looked_at() -> None:
    assert unseen(made(None), NOW) == (
        "the operator has not looked at this run, made 1 min 40 s ago: it has no status; "
        "is it installed, and does it watch namespace ns?"
    )
    assert unseen(made(None, edited_ago=3), NOW) == (
        "the operator has not looked at this run yet, made 3 s ago: it has no status"
    )


def test_a_run_that_nobody_looked_at_since_it_was_edited() -> None:
    said = unseen(made({"observedGeneration": 3}, generation=4), NOW)
    assert said == (
        "the operator has not looked at this run since it was changed 1 min 40 s ago: observedGeneration 3 of "
        "generation 4; is it installed, and does it watch namespace ns?"
    )
    assert unseen(made({"observedGeneration": 4}, generation=4), NOW) == ""


def test_an_edit_that_is_not_carried_out_has_been_looked_at() -> None:
    conditions = [{"type": "InvalidSpec", "status": "True", "observedGeneration": 4}]
    assert seen_generation({"observedGeneration": 3, "conditions": conditions}) == 4


def test_pods_that_the_status_does_not_count() -> None:
    roles = {"trainer": {"ready": 2, "desired": 2}, "inference": {"ready": 1, "desired": 1}}
    pods = [pod("one-trainer-0", PodRole.TRAINER), pod("one-inference-a", PodRole.INFERENCE)]
    assert differing(observed(*pods, run=run({"roles": roles}))) == "2 trainer pods ready, there are 1"
    both = [*pods, pod("one-trainer-1", PodRole.TRAINER)]
    assert differing(observed(*both, run=run({"roles": roles}))) == ""
    ending = [*pods, pod("one-trainer-1", PodRole.TRAINER, deleted_at=NOW)]
    assert differing(observed(*ending, run=run({"roles": roles})))
    assert differing(observed(run=run())) == ""


def lease(renewed_ago: float, holder: str = "a") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": to_text(NOW - renewed_ago)}
    return {"metadata": {"name": "echorl-operator"}, "spec": spec}


def test_leases() -> None:
    assert expired_lease([], NOW) == ""
    assert expired_lease([lease(3)], NOW) == ""
    assert expired_lease([lease(75)], NOW) == "the operator's lease ended 1 min ago"
    assert expired_lease([lease(75), lease(3)], NOW) == ""
    assert expired_lease([lease(5, holder="")], NOW) == "the operator's lease ended 5 s ago"
