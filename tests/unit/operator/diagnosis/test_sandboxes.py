"""What keeps a run's sandboxes, from their pods and from what the orchestrator says of those that have none."""

from dataclasses import replace
from typing import Any

import pytest

from echorl_core.wire.run_state import SandboxesState, SandboxWaits
from echorl_operator.diagnosis.obstacles import first_obstacle
from echorl_operator.diagnosis.sandboxes import Tally, Waiting, late_words, tally
from echorl_operator.observed.records import ContainerPhase, PodPhase, PodRecord
from echorl_operator.observed.world import Observed
from echorl_testing.operator.observed_worlds import NOW, container, meta, observed, pod, run
from echorl_testing.operator.planned_worlds import state

LACKS = "0/2 nodes are available: 2 Insufficient cpu."
RUN = run({"attempt": 1, "phase": "Running"}, sandboxes={"provider": "pod"})


def sandbox(name: str, age_s: float = 250.0, **changes: Any) -> PodRecord:
    return pod(name, None, meta=meta(name, created_at=NOW - age_s), **changes)


def starting(name: str, age_s: float = 250.0, reason: str = "ContainerCreating", message: str = "") -> PodRecord:
    main = container("sandbox", ContainerPhase.WAITING, reason=reason, message=message)
    return sandbox(name, age_s, phase=PodPhase.PENDING, ready=False, containers=(main,))


def unscheduled(name: str, age_s: float = 250.0) -> PodRecord:
    return sandbox(
        name, age_s, phase=PodPhase.PENDING, ready=False, containers=(), node="", unscheduled=LACKS, ready_since=None
    )


def world(*sandboxes: PodRecord, waiting: tuple[SandboxWaits, ...] = (), attempt: int = 1) -> Observed:
    told = state(attempt=attempt, sandboxes=SandboxesState(waiting=list(waiting)))
    return observed(run=RUN, sandboxes=sandboxes, role_state=told)


def waits(why: str, count: int = 3, reason: str = "exceeded quota: few: 1 pods wanted, 2 used of 2") -> SandboxWaits:
    return SandboxWaits(why=why, count=count, reason=reason)


NO_ROOM = "of 2 nodes, 2 have too little cpu free"


def test_every_pod_counts_once_and_what_is_gone_not_at_all() -> None:
    found = tally(
        world(
            sandbox("a"),
            sandbox("b"),
            starting("c"),
            sandbox("d", ready=False, node="", containers=(), phase=PodPhase.PENDING),
            unscheduled("e", 10),
            unscheduled("f", 300),
            starting("g", 20, "ImagePullBackOff", 'Back-off pulling image "x:1"'),
            starting("h", 20, "CreateContainerError", "no such program"),
            pod("i", None, deleted_at=NOW),
            sandbox("j", phase=PodPhase.FAILED, ready=False),
        )
    )
    assert (found.alive, found.starting) == (2, 2)
    assert found.waiting == (
        Waiting("Unschedulable", 2, NO_ROOM, 300),
        Waiting("ImagePullFailed", 1, 'ImagePullBackOff: Back-off pulling image "x:1"', 20),
        Waiting("ContainerNotCreated", 1, "CreateContainerError: no such program", 20),
    )


def test_warm_ones_are_apart_and_keep_nobody() -> None:
    kept = tally(world(sandbox("a", claimed=True), sandbox("b"), sandbox("c", warm=True)))
    assert (kept.alive, kept.claimed, kept.warm) == (2, 1, 1)
    waiting = unscheduled("d", 300)
    assert tally(world(replace(waiting, warm=True), replace(starting("e"), warm=True))) == Tally(0, 0, ())


def test_those_without_a_pod_are_the_orchestrators_word() -> None:
    told = (waits("quota"), waits("limit", 1, "the run has 8"), waits("node", 5, "pods tell it"), waits("surprise"))
    found = tally(world(sandbox("a"), waiting=told))
    assert [(one.reason, one.count) for one in found.waiting] == [("QuotaExceeded", 3), ("LimitReached", 1)]
    assert tally(world(waiting=told, attempt=2)).waiting == (), "of another attempt"
    assert tally(observed(run=RUN)).waiting == ()


def test_what_waits_for_long_is_told_beside_what_the_run_does() -> None:
    assert late_words(world(sandbox("a"), unscheduled("b", 59))) == ""
    told = late_words(world(sandbox("a"), unscheduled("b", 61), waiting=(waits("quota"),)))
    assert told == (
        f"1 sandbox cannot be scheduled: {NO_ROOM}; "
        "3 sandboxes cannot be created: exceeded quota: few: 1 pods wanted, 2 used of 2"
    )


@pytest.mark.parametrize(
    ("seen", "reason", "message"),
    [
        (
            world(unscheduled("a"), unscheduled("b", 10)),
            "Unschedulable",
            f"2 sandboxes cannot be scheduled: {NO_ROOM}; waiting 4 min",
        ),
        (
            world(starting("a", 130, "ErrImagePull", 'failed to pull image "registry.example.com/task:1"')),
            "ImagePullFailed",
            '1 sandbox cannot get an image: ErrImagePull: failed to pull image "registry.example.com/task:1"; '
            "waiting 2 min",
        ),
        (
            world(waiting=(waits("quota"),)),
            "QuotaExceeded",
            "3 sandboxes cannot be created: exceeded quota: few: 1 pods wanted, 2 used of 2",
        ),
    ],
    ids=["nodes", "image", "quota"],
)
def test_a_run_that_has_none_is_blocked(seen: Observed, reason: str, message: str) -> None:
    found = first_obstacle(seen)
    assert found is not None
    assert (found.reason, found.message) == (reason, message)


@pytest.mark.parametrize(
    "seen",
    [
        world(),
        world(sandbox("a"), unscheduled("b")),
        world(starting("a"), unscheduled("b")),
        world(unscheduled("a", 59)),
        world(waiting=(waits("limit"),)),
    ],
    ids=["wants none", "has one", "one starts", "not for long", "by its own limit"],
)
def test_a_run_that_has_some_or_soon_is_not(seen: Observed) -> None:
    assert first_obstacle(seen) is None
