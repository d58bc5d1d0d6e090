import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.reconcile.lanes import Urgency
from echorl_operator.reconcile.queue import QueueSettings, WorkQueue

A, B, C = (RunKey("ns", name) for name in "abc")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def queue(clock: Clock, metrics: Metrics) -> WorkQueue:
    return WorkQueue(metrics, QueueSettings(first_retry_s=1, longest_retry_s=8), clock=clock)


async def take(queue: WorkQueue) -> RunKey | None:
    """The next key if one is due now."""
    task = asyncio.ensure_future(queue.get())
    for _ in range(3):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    return None


async def test_a_key_is_in_the_queue_once(queue: WorkQueue) -> None:
    for _ in range(3):
        queue.add(A)
    assert len(queue) == 1
    assert await take(queue) == A
    assert await take(queue) is None


async def test_a_key_is_never_worked_on_twice_at_once(queue: WorkQueue) -> None:
    queue.add(A)
    assert await take(queue) == A
    queue.add(A)
    assert await take(queue) is None, "it is being worked on"
    queue.done(A)
    assert await take(queue) == A, "it changed meanwhile"
    queue.done(A)
    assert await take(queue) is None


async def test_namespaces_take_turns(queue: WorkQueue) -> None:
    busy = [RunKey("busy", str(number)) for number in range(4)]
    for key in busy:
        queue.add(key)
    queue.add(RunKey("calm", "x"))
    order = [await take(queue) for _ in range(5)]
    assert order == [busy[0], RunKey("calm", "x"), *busy[1:]]


async def test_what_a_person_changed_goes_first_and_yet_stops_nobody(queue: WorkQueue) -> None:
    routine = [RunKey("ns", str(number)) for number in range(3)]
    edited = [RunKey("ns", f"edited-{number}") for number in range(9)]
    for key in [*routine, edited[8]]:
        queue.add(key)
    for key in edited:
        queue.add(key, urgent=True)
    assert len(queue) == 12
    order = [await take(queue) for _ in range(12)]
    assert order == [*edited[:7], routine[0], *edited[7:], *routine[1:]]


async def test_edits_go_before_starts_and_starts_before_the_rest(clock: Clock, metrics: Metrics) -> None:
    urgency = {A: Urgency.NONE, B: Urgency.STARTING, C: Urgency.EDITED}
    queue = WorkQueue(metrics, clock=clock, urgency=urgency.__getitem__)
    for key in (A, B, C):
        queue.add(key)
    assert [await take(queue) for _ in range(3)] == [C, B, A]


async def test_a_flood_of_edits_stops_neither_starts_nor_the_rest(clock: Clock, metrics: Metrics) -> None:
    kinds = {name: Urgency[name] for name in ("EDITED", "STARTING", "NONE")}
    queue = WorkQueue(metrics, clock=clock, urgency=lambda key: kinds[key.namespace])
    for name in kinds:
        for number in range(30):
            queue.add(RunKey(name, str(number)))
    first = [(await take(queue) or A).namespace for _ in range(32)]
    assert {name: first.count(name) for name in kinds} == {"EDITED": 25, "STARTING": 3, "NONE": 4}


async def test_who_is_there_for_edits_takes_nothing_else(clock: Clock, metrics: Metrics) -> None:
    queue = WorkQueue(metrics, clock=clock, urgency=lambda key: Urgency.EDITED if key == C else Urgency.STARTING)
    queue.add(A)
    waits = asyncio.ensure_future(queue.get(Urgency.EDITED))
    await asyncio.sleep(0)
    assert not waits.done()
    queue.add(C)
    assert await asyncio.wait_for(waits, 60) == C
    assert await take(queue) == A


async def test_a_key_that_waits_is_moved_up_when_it_becomes_urgent(clock: Clock, metrics: Metrics) -> None:
    urgency = {A: Urgency.STARTING, B: Urgency.NONE}
    queue = WorkQueue(metrics, clock=clock, urgency=urgency.__getitem__)
    queue.add(A)
    queue.add(B)
    urgency[B] = Urgency.EDITED
    queue.add(B)
    assert [await take(queue) for _ in range(2)] == [B, A]


async def test_an_edit_of_what_is_worked_on_is_still_urgent_afterwards(queue: WorkQueue) -> None:
    queue.add(A)
    await take(queue)
    queue.add(A)
    queue.add(A, urgent=True)
    queue.add(A)
    queue.add(B)
    queue.done(A)
    assert [await take(queue), await take(queue)] == [A, B]


async def test_later_is_later_and_the_earliest_wins(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 10)
    queue.add_after(A, 5)
    queue.add_after(A, 7)
    clock.now = 4.9
    assert await take(queue) is None
    clock.now = 5
    assert await take(queue) == A
    queue.done(A)
    clock.now = 20
    assert await take(queue) is None, "the later times are void"


async def test_a_worker_wakes_when_a_key_becomes_due() -> None:
    queue = WorkQueue(Metrics())
    waiting = asyncio.ensure_future(queue.get())
    queue.add_after(A, 0.05)
    async with asyncio.timeout(60):
        assert await waiting == A


async def test_back_off_doubles_to_a_ceiling_and_is_forgotten(queue: WorkQueue) -> None:
    waits = [queue.retry(A) for _ in range(7)]
    for wait_s, ceiling in zip(waits, (1, 2, 4, 8, 8, 8, 8), strict=True):
        assert ceiling / 2 <= wait_s <= ceiling
    assert queue.failures(A) == 7
    queue.forget(A)
    assert queue.retry(A) <= 1
    assert queue.retry(B, at_least_s=30) == 30


async def test_events_do_not_shorten_back_off_but_people_do(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    await take(queue)
    queue.add(A)
    wait_s = queue.retry(A)
    queue.add(A)
    queue.add_after(A, 0)
    queue.done(A)
    assert await take(queue) is None
    clock.now = wait_s
    assert await take(queue) == A
    queue.retry(A)
    queue.done(A)
    queue.add(A, urgent=True)
    assert await take(queue) == A


async def test_an_earlier_appointment_does_not_swallow_a_retry(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 0.1)
    wait_s = queue.retry(A)
    clock.now = 0.2
    assert await take(queue) is None
    clock.now = wait_s
    assert await take(queue) == A


async def test_a_paused_queue_keeps_what_is_added(queue: WorkQueue) -> None:
    queue.add(A)
    queue.pause()
    assert await take(queue) is None
    queue.add(B)
    waiting = asyncio.ensure_future(queue.get())
    queue.resume()
    async with asyncio.timeout(60):
        assert await waiting == A
    assert await take(queue) == B


async def test_after_an_outage_everything_is_due_at_once(queue: WorkQueue) -> None:
    for _ in range(5):
        queue.retry(A)
    queue.add_all([A, B])
    assert {await take(queue), await take(queue)} == {A, B}
    assert queue.failures(A) == 0


async def test_every_idle_worker_gets_work(queue: WorkQueue) -> None:
    waiting = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in (A, B, C):
        queue.add(key)
    async with asyncio.timeout(60):
        assert set(await asyncio.gather(*waiting)) == {A, B, C}


async def test_depth_and_age_are_gauged(queue: WorkQueue, clock: Clock, metrics: Metrics) -> None:
    queue.add(A)
    queue.add(B)
    queue.add_after(C, 100)
    clock.now = 3
    value: Callable[[str], float | None] = metrics.registry.get_sample_value
    assert value("echorl_operator_queue_depth") == 2
    assert value("echorl_operator_queue_delayed") == 1
    assert value("echorl_operator_queue_oldest_seconds") == 3
    await take(queue)
    clock.now = 5
    assert value("echorl_operator_reconcile_longest_seconds") == 2
    assert value("echorl_operator_queue_wait_seconds_sum") == 3


async def test_void_appointments_do_not_pile_up(queue: WorkQueue, clock: Clock) -> None:
    for number in range(5000):
        queue.add_after(A, 1e6 - number)
    assert len(queue._later) < 200
    assert await take(queue) is None


KEYS = [RunKey(namespace, name) for namespace in ("x", "y") for name in ("1", "2", "3")]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "urgent", "after", "take", "done", "fail", "wait"]), st.sampled_from(KEYS)),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_no_key_is_lost_and_none_is_handed_out_twice(steps: list[tuple[str, RunKey]]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, RunKey]]) -> None:
    clock = Clock()
    queue = WorkQueue(Metrics(), QueueSettings(1, 4), clock=clock)
    owed: set[RunKey] = set()
    working: list[RunKey] = []
    for what, key in steps:
        if what in ("add", "urgent", "after"):
            owed.add(key)
            if what == "after":
                queue.add_after(key, 2)
            else:
                queue.add(key, urgent=what == "urgent")
        elif what == "take" and (got := await take(queue)) is not None:
            assert got not in working
            working.append(got)
            owed.discard(got)
        elif what in ("done", "fail") and working:
            ended = working.pop()
            if what == "fail":
                queue.retry(ended)
                owed.add(ended)
            queue.done(ended)
        else:
            clock.now += 1
    for key in working:
        queue.done(key)
    handed: set[RunKey] = set()
    for _ in range(12):
        clock.now += 5
        while (got := await take(queue)) is not None:
            handed.add(got)
            queue.done(got)
    assert owed <= handed
