from echorl_operator.explain.obstacles import first_obstacle
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, PodPhase
from echorl_testing.observed_worlds import NOW, container, meta, observed, pod


def pending(name: str, role: PodRole, unscheduled: str, **changes):
    return pod(name, role, phase=PodPhase.PENDING, unscheduled=unscheduled, ready=False, containers=(), **changes)


def waiting(name: str, role: PodRole, reason: str, message: str = ""):
    main = container(str(role), ContainerPhase.WAITING, reason=reason, message=message)
    return pod(name, role, phase=PodPhase.PENDING, ready=False, containers=(main,))


def test_nothing_is_in_the_way_of_pods_that_run():
    assert first_obstacle(observed(pod("one-trainer-0", PodRole.TRAINER))) is None


def test_the_scheduler_is_quoted_with_how_many_wait_and_how_long():
    lacks = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    pods = [
        pending(f"one-trainer-{index}", PodRole.TRAINER, lacks, meta=meta(f"t{index}", created_at=NOW - 250))
        for index in range(3)
    ]
    found = first_obstacle(observed(*pods))
    assert found.reason == "Unschedulable"
    assert found.message == f"t0 and 2 more: cannot be scheduled: {lacks}; waiting 4 min"


def test_a_gate_of_ours_is_no_obstacle():
    assert first_obstacle(observed(pending("one-trainer-0", PodRole.TRAINER, "gated", gated=True))) is None


def test_what_comes_first_in_an_attempt_is_told_first():
    engine = waiting("one-inference-a", PodRole.INFERENCE, "ImagePullBackOff", "no such image")
    prepare = pending("one-prepare-1", PodRole.PREPARE, 'persistentvolumeclaim "data" not found')
    assert 'persistentvolumeclaim "data" not found' in first_obstacle(observed(engine, prepare)).message
    found = first_obstacle(observed(engine))
    assert (found.reason, found.message) == (
        "ImagePullFailed",
        "one-inference-a cannot get its image: ImagePullBackOff: no such image; since 1 min",
    )


def test_a_missing_secret_and_a_crash_loop_are_obstacles():
    missing = waiting("one-orchestrator", PodRole.ORCHESTRATOR, "CreateContainerConfigError", 'secret "x" not found')
    assert first_obstacle(observed(missing)).reason == "ContainerNotCreated"
    crashing = waiting("one-inference-a", PodRole.INFERENCE, "CrashLoopBackOff", "back-off 40s")
    assert first_obstacle(observed(crashing)).reason == "CrashLoop"
    starting = waiting("one-inference-a", PodRole.INFERENCE, "ContainerCreating")
    assert first_obstacle(observed(starting)) is None
