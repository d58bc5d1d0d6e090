from echorl_operator.names import PodRole
from echorl_operator.plan.gang import Gang, digest
from echorl_testing.operator.observed_worlds import NOW, ended, observed, pod

TRAINERS = tuple(pod(f"one-trainer-{index}", PodRole.TRAINER, gated=True) for index in range(2))


def gang(*pods, **changes) -> Gang:
    return Gang.of(observed(*pods, **changes), attempt=1, wanted=2)


def test_a_gang_is_made_of_the_trainer_pods_of_its_attempt():
    engine = pod("one-inference-x", PodRole.INFERENCE, attempt=0)
    old = pod("one-trainer-0", PodRole.TRAINER, attempt=2)
    assert gang(*TRAINERS, engine, old).current == TRAINERS


def test_pods_beyond_the_gang_are_none_of_it():
    extra = pod("one-trainer-2", PodRole.TRAINER, gated=True, index=2)
    assert gang(*TRAINERS, extra).current == TRAINERS
    assert gang(*TRAINERS, departed=(ended("one-trainer-2", PodRole.TRAINER, 1, index=2),)).ended == ()


def test_gates_are_lifted_of_a_whole_gang_alone():
    assert gang(*TRAINERS).waits_whole
    assert not gang(TRAINERS[0]).waits_whole
    assert not gang(TRAINERS[0], pod("one-trainer-1", PodRole.TRAINER, deleted_at=NOW)).waits_whole
    assert not gang(TRAINERS[0], ended("one-trainer-1", PodRole.TRAINER, 1)).waits_whole


def test_a_replacement_is_none_of_the_admitted():
    admitted = digest(TRAINERS)
    assert gang(*reversed(TRAINERS)).is_admitted(admitted)
    assert not gang(TRAINERS[0]).is_admitted(admitted)
    assert not gang(TRAINERS[0], pod("one-trainer-9", PodRole.TRAINER)).is_admitted(admitted)


def test_pods_that_are_gone_count_among_the_ended():
    gone = ended("one-trainer-1", PodRole.TRAINER, 3)
    other = ended("one-trainer-1", PodRole.TRAINER, 3, attempt=2)
    assert gang(TRAINERS[0], departed=(gone, other)).ended == (gone,)
