"""One pod decides for the gang whether ranks start again in place, and all pods learn the same."""

import http.client
import signal
from concurrent.futures import ThreadPoolExecutor
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from echorl_core.config import MemoryConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.wire.in_place import Gang, Joined, PodEnds, RankEnd, Verdict
from echorl_trainer.agreement import Agreement
from echorl_trainer.in_place_http import RemoteFirstPod, serve
from echorl_trainer.mirror import Refused, Unreachable

CONFIG = MemoryConfig(limit_bytes=1, max_restarts=2, backoff_s=8.0, passed_on=[77])
IDENTITY = RunIdentity("run", "uid", 3)


def ends(
    pod: int, status: int = 143, *, held: tuple[int, ...] = (4, 5), restarts: int = 0, leaves: bool = False
) -> PodEnds:
    """A pod of one rank; 143: it was told to end."""
    end = RankEnd(rank=pod, status=status, asked=status == 143)
    return PodEnds(pod=pod, restarts=restarts, ends=[end], held=list(held), leaves=leaves)


def agreed(*reports: PodEnds, config: MemoryConfig = CONFIG, parted_s: float = 60.0) -> Verdict | None:
    """What the last one is answered at once, of as many pods as there are reports."""
    agreement = Agreement(config, len(reports), parted_s=parted_s)
    return [agreement.report(one, 0.0) for one in reports][-1]


def test_all_pods_start_again_when_all_have_ended() -> None:
    agreement = Agreement(CONFIG, 3)
    assert not agreement.has_failed(0, "", 0.0)
    assert agreement.report(ends(1, -signal.SIGKILL), 0.0) is None
    assert agreement.has_failed(0, "", 0.0)
    assert agreement.report(ends(0, held=(3, 4)), 0.0) is None
    verdict = agreement.report(ends(2), 0.0)
    assert verdict == Verdict(
        again=True, gang=Gang(restarts=1), reason="rank 1 was ended by signal 9", delay_s=0.0, step=4
    )
    assert agreement.report(ends(1, -signal.SIGKILL), 0.0) == verdict, "asked again by who missed the answer"
    assert agreement.has_failed(0, "", 0.0), "for who is late"
    assert not agreement.has_failed(1, "", 0.0)


def test_restarts_wait_and_are_limited_by_the_gangs_common_count() -> None:
    agreement = Agreement(CONFIG, 2)
    found = []
    for restarts in range(3):
        agreement.report(ends(restarts % 2, 1, restarts=restarts), 0.0)
        found.append(agreement.report(ends(1 - restarts % 2, restarts=restarts), 0.0))
    assert [(one.again, one.delay_s) for one in found if one is not None] == [(True, 0.0), (True, 8.0), (False, 0.0)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ends(0, -9, held=(3, 4)), ends(1, held=(5, 6))),
        (ends(0, -9, held=()), ends(1)),
        (ends(0, 1), ends(1, int(ExitCode.NON_FINITE))),
        (ends(0, 1), ends(1, 77)),
        (ends(0, 1), ends(1, int(ExitCode.NOTICE))),
        (ends(0, 0), ends(1, 0)),
        (ends(0, -9), ends(1, leaves=True)),
    ],
    ids=["no common step", "nothing held", "a NaN", "a code with a rule", "a notice", "the end", "a pod is deleted"],
)
def test_what_is_not_mended_in_place(first: PodEnds, second: PodEnds) -> None:
    for reports in ((first, second), (second, first)):
        verdict = agreed(*reports)
        assert verdict is not None
        assert not verdict.again


@pytest.mark.parametrize("end", [ends(1, int(ExitCode.NOTICE)), ends(1, leaves=True), ends(1, 0)])
def test_a_pod_that_saved_or_leaves_does_not_disturb_those_that_still_save(end: PodEnds) -> None:
    agreement = Agreement(CONFIG, 2)
    agreement.report(end, 0.0)
    assert not agreement.has_failed(0, "", 0.0)


def test_a_pod_that_says_nothing_is_not_waited_for() -> None:
    agreement = Agreement(CONFIG, 3, parted_s=0.1)
    assert agreement.report(ends(2, -9), 0.0) is None
    agreement.report(ends(0), 0.0)
    verdict = agreement.report(ends(0), 60.0)
    assert verdict == Verdict(
        again=False, gang=Gang(restarts=0), reason="pods [1] did not say within 0 s how their ranks ended"
    )


@given(
    rounds=st.lists(st.lists(st.sampled_from([143, 1, -9, 0]), min_size=3, max_size=3), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_whatever_the_order_and_however_often_they_ask_all_learn_the_same(
    rounds: list[list[int]], order: Random
) -> None:
    agreement = Agreement(MemoryConfig(limit_bytes=1, max_restarts=99), 3)
    for restarts, statuses in enumerate(rounds):
        reports = [ends(pod, status, restarts=restarts) for pod, status in enumerate(statuses)] * 2
        order.shuffle(reports)
        last = max(reports.index(ends(pod, status, restarts=restarts)) for pod, status in enumerate(statuses))
        answers = [agreement.report(one, 0.0) for one in reports]
        assert all(answer is None for answer in answers[:last]), "before all have said, nobody starts"
        verdicts = {agreement.report(one, 0.0) for one in reports}
        assert len(verdicts) == 1
        assert verdicts == set(answers[last:])
        (verdict,) = verdicts
        assert verdict is not None
        assert verdict.again == any(status in (1, -9) for status in statuses)
        if not verdict.again:
            return


MIRRORED = MemoryConfig(limit_bytes=1, max_restarts=0, mirror=True, replaced_within_s=60.0, passed_on=[77])


def gang_of(pods: int) -> Agreement:
    agreement = Agreement(MIRRORED, pods, instance="old 0")
    for pod in range(pods):
        assert (agreement.join(pod, f"old {pod}", 0.0) is None) == (pod < pods - 1), "all meet first"
    for pod in range(pods):
        assert joined(agreement, pod, f"old {pod}") == (0, False)
    return agreement


def joined(agreement: Agreement, pod: int, instance: str) -> tuple[int, bool]:
    """How many restarts came before it, and whether it takes another one's place."""
    told = agreement.join(pod, instance, 0.0)
    assert told is not None
    assert told.gang.instances[pod] == instance
    return told.gang.restarts, told.replaces


def of(instance: str, said: PodEnds) -> PodEnds:
    return replace(said, instance=f"{instance} {said.pod}")


def test_the_gang_goes_on_with_a_pod_in_the_place_of_a_lost_one_from_what_all_hold() -> None:
    agreement = gang_of(3)
    assert agreement.report(of("old", ends(0, 1, held=(4, 6, 7))), 0.0) is None
    assert agreement.report(of("old", ends(1, 1, held=(4, 6, 7))), 0.0) is None
    for _ in range(2):
        assert joined(agreement, 2, "new 2") == (0, True)
    none = replace(of("new", ends(2, held=(4, 6))), ends=[])
    verdict = agreement.report(none, 0.0)
    assert verdict is not None
    assert (verdict.again, verdict.step, verdict.delay_s) == (True, 6, 0.0)
    assert verdict.gang == Gang(restarts=1, replacements=1, instances=("old 0", "old 1", "new 2"))
    assert verdict.replaced == (2,), "and it counts against nothing here"
    assert joined(agreement, 2, "new 2") == (1, False)
    assert agreement.report(of("old", ends(0, 1, held=(4, 6, 7))), 0.0) == verdict


def test_others_end_when_a_pod_comes_in_anothers_place_and_that_one_is_not_heard_any_more() -> None:
    agreement = gang_of(3)
    assert not agreement.has_failed(0, "", 0.0)
    joined(agreement, 1, "new 1")
    assert agreement.has_failed(0, "", 0.0)
    for _ in range(2):
        with pytest.raises(Refused, match="pod 1 is another one now"):
            agreement.report(of("old", ends(1)), 0.0)
        with pytest.raises(Refused, match="pod 1 is another one now"):
            agreement.join(1, "old 1", 0.0)
        agreement.report(of("old", ends(0)), 0.0)
        agreement.report(of("old", ends(2)), 0.0)
        verdict = agreement.report(of("new", ends(1)), 0.0)
    assert verdict is not None
    assert verdict.again


def test_a_pod_that_is_told_to_end_is_waited_for() -> None:
    agreement = gang_of(2)
    assert agreement.report(of("old", ends(1, leaves=True)), 0.0) is None
    assert agreement.has_failed(0, "old 0", 0.0), "the others end their ranks"
    assert agreement.report(of("old", ends(0)), 0.0) is None
    joined(agreement, 1, "new 1")
    verdict = agreement.report(of("new", ends(1)), 0.0)
    assert verdict is not None
    assert verdict.again
    # The first one itself: nothing is decided, and another one is waited for.
    other = gang_of(2)
    assert other.report(of("old", ends(0, leaves=True)), 0.0) is None
    assert other.has_failed(0, "old 0", 0.0)
    assert other.report(of("old", ends(1)), 0.0) is None
    other.close()


def knowing(said: PodEnds, restarts: int, replacements: int, *instances: str) -> PodEnds:
    """Of a pod that was told that of its gang."""
    return replace(said, known=Gang(restarts=restarts, replacements=replacements, instances=instances))


def test_another_first_pod_goes_on_from_what_the_others_know() -> None:
    agreement = Agreement(MIRRORED, 3, instance="new 0")
    assert agreement.join(0, "new 0", 0.0) is None, "it does not know yet that another one was there"
    assert agreement.has_failed(4, "old 0", 0.0), "the others end their ranks"
    one = knowing(of("old", ends(1, 1, restarts=4, held=(6, 7))), 4, 2, "old 0", "old 1", "old 2")
    two = knowing(of("old", ends(2, restarts=4, held=(6, 7))), 4, 2, "old 0", "old 1", "old 2")
    assert agreement.report(one, 0.0) is None
    assert agreement.join(0, "new 0", 0.0) is None
    assert agreement.report(two, 0.0) is None
    told = agreement.join(0, "new 0", 0.0)
    gang = Gang(restarts=4, replacements=2, instances=("new 0", "old 1", "old 2"))
    assert told == Joined(gang=gang, replaces=True)
    assert agreement.report(one, 0.0) is None, "it has said so before the first pod had begun"
    verdict = agreement.report(of("new", replace(ends(0, restarts=4, held=(5, 6)), ends=[])), 0.0)
    assert verdict is not None
    assert (verdict.again, verdict.step, verdict.replaced) == (True, 6, (0,))
    assert verdict.gang == replace(gang, restarts=5, replacements=3)
    assert agreement.report(two, 0.0) == verdict
    assert not agreement.has_failed(5, "new 0", 0.0)


def test_a_pod_that_missed_the_lost_first_pods_answer_is_heard_by_the_next_one() -> None:
    agreement = Agreement(MIRRORED, 3, instance="third 0")
    agreement.join(0, "third 0", 0.0)
    ahead = knowing(of("old", ends(1, restarts=5)), 5, 1, "second 0", "old 1", "new 2")
    behind = knowing(of("new", ends(2, restarts=4)), 4, 1, "first 0", "old 1", "new 2")
    for _ in range(2):
        assert agreement.report(ahead, 0.0) is None
        assert agreement.report(behind, 0.0) is None
    verdict = agreement.report(of("third", ends(0, restarts=5)), 0.0)
    assert verdict is not None
    assert (verdict.again, verdict.gang.restarts, verdict.replaced) == (True, 6, (0,))
    assert agreement.report(behind, 0.0) == verdict


def test_the_first_pod_and_another_one_are_replaced_at_once() -> None:
    agreement = Agreement(MIRRORED, 4, instance="new 0")
    old = ("old 0", "old 1", "old 2", "old 3")
    agreement.join(0, "new 0", 0.0)
    agreement.join(2, "new 2", 0.0)
    said = [knowing(of("old", ends(pod, restarts=1)), 1, 0, *old) for pod in (1, 3)]
    for one in (*said, *said):
        assert agreement.report(one, 0.0) is None
    assert joined(agreement, 0, "new 0") == joined(agreement, 2, "new 2") == (1, True)
    assert agreement.report(of("new", ends(2, restarts=1)), 0.0) is None
    verdict = agreement.report(of("new", ends(0, restarts=1)), 0.0)
    assert verdict is not None
    assert (verdict.again, verdict.replaced) == (True, (0, 2))
    with pytest.raises(Refused, match="pod 2 is another one now"):
        agreement.join(2, "old 2", 0.0)


def test_a_first_pod_whose_place_was_taken_is_of_no_use_to_those_who_know() -> None:
    agreement = gang_of(3)
    said = knowing(of("old", ends(1, restarts=1)), 1, 1, "new 0", "old 1", "old 2")
    with pytest.raises(Refused, match="pod 0 is another one now"):
        agreement.report(said, 0.0)
    with pytest.raises(Refused, match="pod 0 is another one now"):
        agreement.has_failed(1, "new 0", 0.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ends(0, 1), ends(1, held=())),
        (ends(0, int(ExitCode.NON_FINITE)), ends(1)),
        (ends(0, 77), ends(1)),
        (ends(0, 0), replace(ends(1), ends=[])),
    ],
    ids=["nothing is held", "a NaN", "a code with a rule", "all is done"],
)
def test_what_a_pod_in_anothers_place_does_not_mend(first: PodEnds, second: PodEnds) -> None:
    agreement = gang_of(2)
    joined(agreement, 1, "new 1")
    agreement.report(of("old", first), 0.0)
    verdict = agreement.report(of("new", second), 0.0)
    assert verdict is not None
    assert not verdict.again


def test_a_place_that_nobody_takes_is_not_waited_for_longer_than_that() -> None:
    agreement = Agreement(MIRRORED.model_copy(update={"replaced_within_s": 0.1}), 2, instance="old 0", parted_s=0.1)
    agreement.join(1, "old 1", 0.0)
    agreement.join(0, "old 0", 0.0)
    agreement.report(of("old", ends(0, -9)), 0.0)
    verdict = agreement.report(of("old", ends(0, -9)), 60.0)
    assert verdict is not None
    assert not verdict.again


@pytest.fixture
def served() -> tuple[Agreement, int]:
    agreement = Agreement(CONFIG, 2)
    return agreement, serve(agreement, "127.0.0.1", 0, pods=2, identity=IDENTITY, token="secret")


def test_other_pods_hear_of_a_failure_and_of_the_verdict_while_they_wait(served: tuple[Agreement, int]) -> None:
    agreement, port = served
    other = RemoteFirstPod("127.0.0.1", port, IDENTITY, "secret")
    assert not other.has_failed(0, "", 0.0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.has_failed, 0, "", 60.0)
        assert agreement.report(ends(0, -9), 0.0) is None
        assert waiting.result(60)
        answer = threads.submit(other.report, ends(1), 60.0)
        verdict = agreement.report(ends(0, -9), 60.0)
        assert verdict is not None
        assert verdict.again
        assert answer.result(60) == verdict
    agreement.close()


@pytest.mark.parametrize(
    ("identity", "token", "report", "status"),
    [
        (IDENTITY, "wrong", ends(1), 403),
        (IDENTITY, "", ends(1), 403),
        (RunIdentity("run", "uid", 2), "secret", ends(1), 409),
        (RunIdentity("run", "other", 3), "secret", ends(1), 409),
        (IDENTITY, "secret", ends(2), 400),
        (IDENTITY, "secret", ends(0), 400),
    ],
)
def test_nobody_else_is_heard(
    served: tuple[Agreement, int], identity: RunIdentity, token: str, report: PodEnds, status: int
) -> None:
    agreement, port = served
    with pytest.raises(Unreachable, match=f"status {status}"):
        RemoteFirstPod("127.0.0.1", port, identity, token).report(report, 0.0)
    assert not agreement.has_failed(0, "", 0.0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/in-place/ends?wait=0", b"{", 400),
        ("POST", "/in-place/ends?wait=0", b"", 400),
        ("POST", "/in-place/ends?wait=x", msgspec.json.encode(ends(1)), 400),
        ("GET", "/in-place/failed?wait=0", None, 400),
        ("GET", "/elsewhere", None, 404),
    ],
)
def test_what_is_no_message_is_refused(
    served: tuple[Agreement, int], method: str, path: str, body: bytes | None, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served[1], timeout=60)
    connection.request(method, path, body, {**IDENTITY.headers(), "X-EchoRL-Token": "secret"})
    assert connection.getresponse().status == status
    connection.close()
