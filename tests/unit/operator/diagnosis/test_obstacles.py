from dataclasses import replace

from echorl_core.termination_message import encoded, message_of_end
from echorl_operator.diagnosis.capacity import Node, rooms, words
from echorl_operator.diagnosis.event_queries import absent_pods, is_stranger, objects_to_query
from echorl_operator.diagnosis.obstacles import first_obstacle, refused, without_pods
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind, PodPhase
from echorl_operator.observed.times import to_text
from echorl_operator.observed.warning_events import EventSubject, WarningEvent
from echorl_testing.operator.observed_worlds import NOW, container, meta, observed, pod, run
from echorl_testing.operator.planned_worlds import state

GPU = "nvidia.com/gpu"
SET = EventSubject("StatefulSet", "one-trainer")


def pending(name: str, role: PodRole, unscheduled: str, **changes):
    return pod(
        name, role, phase=PodPhase.PENDING, unscheduled=unscheduled, ready=False, containers=(), node="", **changes
    )


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
    assert found.message == (
        "t0 and 2 more cannot be scheduled: of 2 nodes, 2 have too little nvidia.com/gpu free; waiting 4 min"
    )


def test_what_a_pod_wants_stands_beside_what_the_scheduler_says_or_nodes_have():
    lacks = "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
    wants = (("cpu", "8"), (GPU, "8"))
    world = observed(pending("one-trainer-1", PodRole.TRAINER, lacks, wants=wants))
    assert first_obstacle(world).message == (
        "one-trainer-1 cannot be scheduled: 8 nvidia.com/gpu wanted; of 3 nodes, "
        "2 have too little nvidia.com/gpu free, 1 is cordoned; waiting 1 min"
    )

    def figures(resource: str, wanted: str) -> str:
        nodes = [Node(name, {GPU: "8"}, schedulable=True) for name in "ab"]
        return words(resource, wanted, rooms(resource, nodes, {"a": ["8"], "b": ["5"]}))

    assert first_obstacle(world, figures).message == (
        "one-trainer-1 cannot be scheduled: 8 nvidia.com/gpu wanted, 3 free on 2 nodes; 1 is cordoned; waiting 1 min"
    )


def test_a_gang_waits_since_it_was_let_through():
    lacks = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    entries = [("Preparing", 1, 900), ("Starting", 1, 800), ("Restarting", 2, 500), ("Starting", 2, 130)]
    timeline = [{"phase": phase, "attempt": n, "since": to_text(NOW - ago)} for phase, n, ago in entries]
    old = meta("one-trainer-0", created_at=NOW - 490)
    world = observed(
        pending("one-trainer-0", PodRole.TRAINER, lacks, meta=old), run=run({"attempt": 2, "timeline": timeline})
    )
    assert first_obstacle(world).message.endswith("waiting 2 min")


NO_NODE = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
NOT_BESIDE = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."


def test_a_node_selector_that_no_node_meets_is_named():
    selector = (("gpu", "h900"), ("zone", "a"))
    stuck = pending("one-trainer-0", PodRole.TRAINER, NO_NODE, node_selector=selector)
    words = "2 do not match its node selector or affinity; its node selector is gpu=h900, zone=a; waiting"
    assert words in first_obstacle(observed(stuck)).message
    # Not where something else is the matter, nor where there is none.
    lacks = replace(stuck, unscheduled="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    assert "selector" not in first_obstacle(observed(lacks)).message
    assert first_obstacle(observed(replace(stuck, node_selector=()))).message.count("selector") == 1


def test_an_orchestrator_that_follows_a_pod_without_a_node_is_not_blamed():
    follows = pending("one-orchestrator", PodRole.ORCHESTRATOR, NOT_BESIDE)
    stuck = pending("one-trainer-0", PodRole.TRAINER, NO_NODE)
    assert first_obstacle(observed(follows, stuck)).message.startswith("one-trainer-0 cannot be scheduled")
    # Alone it is what there is to say.
    assert first_obstacle(observed(follows)).message.startswith("one-orchestrator cannot be scheduled")
    other = waiting("one-inference-a", PodRole.INFERENCE, "ImagePullBackOff")
    assert first_obstacle(observed(follows, other)).message.startswith("one-orchestrator cannot be scheduled")


def test_a_full_volume_is_what_a_run_waits_for():
    full = state(volume_full="batch 7 cannot be written: no space left on device")
    world = observed(run=run({"attempt": 1, "phase": "Running"}), role_state=full)
    found = first_obstacle(world)
    assert (found.reason, found.message) == (
        "VolumeFull",
        "the claim one-volume is full: batch 7 cannot be written: no space left on device",
    )
    assert first_obstacle(replace(world, role_state=replace(full, attempt=2))) is None
    assert first_obstacle(replace(world, role_state=state())) is None


def test_a_gate_of_ours_is_no_obstacle():
    assert first_obstacle(observed(pending("one-trainer-0", PodRole.TRAINER, "gated", gated=True))) is None


def test_what_comes_first_in_an_attempt_is_told_first():
    engine = waiting("one-inference-a", PodRole.INFERENCE, "ImagePullBackOff", "no such image")
    prepare = pending("one-prepare-1", PodRole.PREPARE, 'persistentvolumeclaim "data" not found')
    assert first_obstacle(observed(engine, prepare)).reason == "ClaimNotFound"
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
    said = encoded(message_of_end("inference", 2, "model.dtype: found fp7")).decode()
    last = container("inference", ContainerPhase.TERMINATED, exit_code=2, reason="Error", message=said)
    (loop,) = crashing.containers
    spoken = replace(crashing, containers=(replace(loop, last=last),))
    assert (
        "back-off 40s; it ended with code 2: model.dtype: found fp7; since" in first_obstacle(observed(spoken)).message
    )
    killed = replace(loop, last=replace(last, exit_code=137, reason="OOMKilled", message=""))
    objects_to_query = first_obstacle(observed(replace(crashing, containers=(killed,)))).message
    assert "; it ended with code 137 (OOMKilled); since" in objects_to_query
    starting = waiting("one-inference-a", PodRole.INFERENCE, "ContainerCreating")
    assert first_obstacle(observed(starting)) is None


def trainer_set(desired: int = 2):
    return ChildRecord(kind=Kind.STATEFUL_SET, meta=meta("one-trainer"), body=b"", desired=desired)


def complaint(subject: EventSubject, reason: str, message: str, ago: float = 5.0, first: float = 70.0) -> WarningEvent:
    return WarningEvent(subject, "Warning", reason, message, 3, NOW - first, NOW - ago)


REFUSED = (
    'create Pod one-trainer-0 in StatefulSet one-trainer failed error: pods "one-trainer-0" is forbidden: '
    "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=0, "
    "limited: requests.nvidia.com/gpu=4"
)


def test_pods_that_a_stateful_set_cannot_make_are_told_by_its_events():
    world = observed(children=(trainer_set(),), warning_events=(complaint(SET, "FailedCreate", REFUSED),))
    found = first_obstacle(world)
    assert (found.reason, found.message) == (
        "QuotaExceeded",
        "2 trainer pods cannot be created: exceeded quota: gpus: 8 requests.nvidia.com/gpu wanted, 0 used of 4; "
        "since 1 min",
    )


def test_events_of_pods_that_are_there_or_of_older_attempts_are_no_obstacle():
    said = (complaint(SET, "FailedCreate", REFUSED, ago=60),)
    there = [pod(f"one-trainer-{index}", PodRole.TRAINER) for index in range(2)]
    assert first_obstacle(observed(*there, children=(trainer_set(),), warning_events=said)) is None
    younger = run({"attempt": 2, "timeline": [{"phase": "Restarting", "attempt": 2, "since": to_text(NOW - 3)}]})
    assert first_obstacle(observed(run=younger, children=(trainer_set(),), warning_events=said)) is None
    ending = "create Pod one-trainer-0 in StatefulSet one-trainer failed error: object is being deleted: pods ..."
    late = (complaint(SET, "FailedCreate", ending),)
    assert first_obstacle(observed(children=(trainer_set(),), warning_events=late)) is None


STARTING = {"attempt": 2, "phase": "Starting", "control": {"preparedAttempt": 2}}


def test_pods_that_should_be_there_are_looked_for_by_their_names():
    first = pod("one-trainer-0", PodRole.TRAINER)
    orchestrator = pod("one-orchestrator", PodRole.ORCHESTRATOR)
    two = (trainer_set(),)

    def absent(*pods, status=STARTING, children=two):
        return absent_pods(observed(*pods, run=run(status), children=children))

    assert absent(first, orchestrator) == ("one-trainer-1",)
    # One that is labelled as none of the run's roles has the name all the same.
    assert absent(replace(first, role=None), orchestrator) == ("one-trainer-0", "one-trainer-1")
    assert absent(children=()) == ("one-orchestrator",)
    assert absent(children=(), status={"attempt": 3, "phase": "Preparing"}) == ("one-prepare-3",)
    assert absent(children=(trainer_set(500),)) == ("one-orchestrator", "one-trainer-0")
    for phase in ("Suspended", "Succeeded", "Failed"):
        assert absent(status={**STARTING, "phase": phase}) == ()
    assert absent(status={}) == ()


def test_a_pod_without_the_runs_labels_is_a_stranger():
    ours = pod("one-trainer-0", PodRole.TRAINER)
    assert not is_stranger(ours, run())
    assert is_stranger(replace(ours, meta=replace(ours.meta, run_uid="")), run())
    assert is_stranger(replace(ours, role=None), run())


def test_a_stranger_under_the_name_of_a_missing_pod_is_named_and_its_controller_asked_again():
    stranger = pod("one-trainer-0", PodRole.TRAINER, meta=meta("one-trainer-0", run_uid="", owner_uid=""))
    world = observed(run=run(STARTING), children=(trainer_set(),), strangers=(stranger,))
    found = first_obstacle(world)
    assert found.reason == "NameTaken"
    assert found.message.startswith("one-trainer-0 cannot be created: a pod of that name, 1 min old, is not the run's")
    assert found.message.endswith("kubectl delete pod one-trainer-0")
    assert [one.meta.name for one in without_pods(world)] == ["one-trainer"]
    ending = replace(stranger, meta=replace(stranger.meta, deleted_at=NOW + 9))
    world = replace(world, strangers=(ending,))
    assert (first_obstacle(world), without_pods(world)) == (None, [])


def test_a_claim_without_a_volume_is_told_with_its_events():
    unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    waits = pending("one-prepare-1", PodRole.PREPARE, unbound)
    subject = EventSubject("PersistentVolumeClaim", "one-volume")
    assert objects_to_query(observed(waits)) == (subject,)
    found = first_obstacle(observed(waits))
    assert (found.reason, found.message) == (
        "ClaimPending",
        "one-prepare-1 cannot be scheduled: its claim one-volume has no volume yet; waiting 1 min",
    )
    said = complaint(subject, "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found')
    assert (
        '(storageclass.storage.k8s.io "fast" not found)'
        in first_obstacle(observed(waits, warning_events=(said,))).message
    )


def test_a_claim_that_is_missing():
    missing = '0/1 nodes are available: persistentvolumeclaim "data" not found. not found'
    found = first_obstacle(observed(pending("one-prepare-1", PodRole.PREPARE, missing)))
    assert (found.reason, found.message) == (
        "ClaimNotFound",
        "one-prepare-1 cannot be scheduled: there is no claim data in namespace ns; waiting 1 min",
    )


def test_volumes_that_cannot_be_mounted_are_told_by_the_pods_events():
    starting = waiting("one-prepare-1", PodRole.PREPARE, "ContainerCreating")
    subject = EventSubject("Pod", "one-prepare-1")
    assert objects_to_query(observed(starting)) == (subject,)
    said = complaint(subject, "FailedMount", 'MountVolume.SetUp failed for volume "code" : configmap "x" not found')
    found = first_obstacle(observed(starting, warning_events=(said,)))
    assert (found.reason, found.message) == (
        "VolumeNotMounted",
        'one-prepare-1 cannot be started: MountVolume.SetUp failed for volume "code" : configmap "x" not found; '
        "since 1 min",
    )
    running = pod("one-prepare-1", PodRole.PREPARE)
    assert first_obstacle(observed(running, warning_events=(said,))) is None
    pulling = complaint(subject, "Pulling", "Pulling image", ago=1)
    assert first_obstacle(observed(starting, warning_events=(said, pulling))) is None


def test_a_network_that_cannot_be_set_up_is_told_by_the_pods_events():
    starting = waiting("one-inference-5d8-x", PodRole.INFERENCE, "ContainerCreating")
    why = "Failed to create pod sandbox: plugin type=cni failed: no addresses left"
    said = complaint(EventSubject("Pod", "one-inference-5d8-x"), "FailedCreatePodSandBox", why)
    found = first_obstacle(observed(starting, warning_events=(said,)))
    assert found.reason == "SandboxNotCreated"
    assert found.message == f"one-inference-5d8-x cannot be started: {why}; since 1 min"
    sandboxed = pod("one-inference-5d8-x", PodRole.INFERENCE)
    assert first_obstacle(observed(sandboxed, warning_events=(said,))) is None


def test_a_claim_whose_volume_is_gone_is_told_while_pods_still_run():
    def claim(phase: str) -> ChildRecord:
        return ChildRecord(kind=Kind.CLAIM, meta=meta("one-volume"), body=b"{}", phase=phase)

    there = pod("one-trainer-0", PodRole.TRAINER)
    found = first_obstacle(observed(there, children=(claim("Lost"),)))
    assert (found.reason, found.message) == ("VolumeLost", "the claim one-volume has lost its volume")
    assert first_obstacle(observed(there, children=(claim("Bound"),))) is None


def test_a_limit_range_is_told_by_the_deployments_condition():
    why = 'pods "one-inference-5d8-x" is forbidden: maximum cpu usage per Container is 1, but limit is 2'
    child = ChildRecord(kind=Kind.DEPLOYMENT, meta=meta("one-inference"), body=b"{}", desired=1, failure=why)
    found = first_obstacle(observed(children=(child,)))
    assert found.reason == "LimitRangeExceeded"
    assert found.message.endswith("cannot be created: maximum cpu usage per Container is 1, but limit is 2")


def test_events_are_asked_for_only_while_something_is_missing():
    there = [pod(f"one-trainer-{index}", PodRole.TRAINER) for index in range(2)]
    assert objects_to_query(observed(*there, children=(trainer_set(),))) == ()
    assert objects_to_query(observed(there[0], children=(trainer_set(),))) == (SET,)
    ending = pod("one-trainer-1", PodRole.TRAINER, deleted_at=NOW)
    assert objects_to_query(observed(there[0], ending, children=(trainer_set(),))) == ()
    assert objects_to_query(observed(children=(trainer_set(desired=0),))) == ()


def test_a_write_that_is_refused_names_the_object():
    error = 'create /api/v1/namespaces/ns/pods: 403 Forbidden: pods "one-prepare-1" is forbidden: no reason'
    assert refused(error).message == "Pod one-prepare-1 cannot be created: no reason"
