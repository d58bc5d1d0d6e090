"""Copies of ranks go to a neighbour and come back, whole or not at all, and never from ranks of before."""

import os
import time
from collections.abc import Callable

import pytest

from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import HEAD_BYTES, RankMemory, Slot
from echorl_trainer.in_place_http import serve
from echorl_trainer.mirror import CHUNK_BYTES, Mirroring, Mirrors, Refused, Unreachable
from echorl_trainer.mirror_http import NextPod

IDENTITY = RunIdentity("run", "uid", 3)
RANKS = range(2, 4)
SIZE = CHUNK_BYTES + 12345


def always() -> bool:
    return True


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fill(slot: Slot, rank: int, step: int) -> None:
    slot.clear()
    content = bytes([rank, step]) * (SIZE // 2)
    os.pwrite(slot.file, content, HEAD_BYTES)
    slot.seal(step, f"rank {rank}, step {step}".encode(), HEAD_BYTES + len(content))


def holds(slot: Slot, rank: int, step: int) -> bool:
    content = os.pread(slot.file, SIZE // 2 * 2, HEAD_BYTES)
    words = f"rank {rank}, step {step}".encode()
    return slot.step == step and slot.record() == words and content == bytes([rank, step]) * (SIZE // 2)


@pytest.fixture
def mirrors() -> Mirrors:
    return Mirrors(RANKS, 2 * SIZE)


@pytest.fixture
def neighbour(mirrors: Mirrors) -> NextPod:
    port = serve(None, "127.0.0.1", 0, pods=2, identity=IDENTITY, token="secret", mirrors=mirrors)
    return NextPod("127.0.0.1", port, IDENTITY, "secret")


@pytest.fixture
def memories() -> dict[int, RankMemory]:
    return {rank: RankMemory(rank, mirrored=True) for rank in RANKS}


def want(memories: dict[int, RankMemory], step: int, slot: int) -> None:
    for rank, memory in memories.items():
        fill(memory.slots[slot], rank, step)
    for memory in memories.values():
        assert memory.mirror is not None
        memory.mirror.want(step)


def test_what_ranks_want_there_is_at_the_neighbour_and_another_pod_has_it_bit_for_bit(
    neighbour: NextPod, memories: dict[int, RankMemory], mirrors: Mirrors
) -> None:
    mirroring = Mirroring(memories, neighbour)
    want(memories, 5, 0)
    mirroring.begin(0)
    until(lambda: mirroring.done == 5)
    want(memories, 7, 1)
    until(lambda: mirroring.done == 7)
    want(memories, 8, 2)
    until(lambda: mirroring.done == 8)
    mirroring.end()
    others = {rank: RankMemory(rank, mirrored=True) for rank in RANKS}
    Mirroring(others, neighbour).fetch(0, 0.0, always)
    for rank, memory in others.items():
        assert memory.steps == {7, 8}, "two of each"
        assert holds(memory.slots[0], rank, 8)
        assert holds(memory.slots[1], rank, 7)
    with pytest.raises(Refused, match="restarts: found 0, accepted are 1"):
        mirrors.receiving(2, 9, 0, (HEAD_BYTES, 1)).__enter__()
    mirrors.restarted(1, 7)
    assert neighbour.steps(0) == {2: {7}, 3: {7}}, "what is trained anew must not be taken for that of before"


def test_nothing_is_sent_while_no_rank_runs_or_before_all_want_it(
    neighbour: NextPod, memories: dict[int, RankMemory], mirrors: Mirrors
) -> None:
    mirroring = Mirroring(memories, neighbour)
    want(memories, 5, 0)
    mirroring.begin(0)
    until(lambda: mirroring.done == 5)
    mirroring.end()
    want(memories, 6, 1)
    mirroring.reset(5)
    assert {memory.mirror.wanted for memory in memories.values() if memory.mirror is not None} == {None}
    mirroring.begin(1)
    note = memories[2].mirror
    assert note is not None
    note.want(6)
    assert neighbour.steps(-1) == {2: {5}, 3: {5}}
    assert mirroring.done == 5


def test_a_slot_that_is_overwritten_meanwhile_is_not_whole_at_the_neighbour(
    neighbour: NextPod, memories: dict[int, RankMemory]
) -> None:
    slot = memories[2].slots[0]
    fill(slot, 2, 5)

    def overwritten() -> bool:
        slot.clear()
        return True

    with pytest.raises(Unreachable):
        neighbour.put(2, slot, 5, 0, overwritten)
    fill(slot, 2, 5)
    with pytest.raises(Unreachable):
        neighbour.put(2, slot, 5, 0, lambda: False)
    assert neighbour.steps(-1) == {2: set(), 3: set()}
    until(lambda: put(neighbour, slot, 5))
    assert neighbour.steps(-1) == {2: {5}, 3: set()}


def put(neighbour: NextPod, slot: Slot, step: int) -> bool:
    """Whether it is taken: one that broke off may still be thought to be under way."""
    try:
        neighbour.put(2, slot, step, 0, always)
    except Unreachable:
        return False
    return True


def test_a_copy_that_is_under_way_is_void_once_the_gang_starts_again(mirrors: Mirrors) -> None:
    under_way = mirrors.receiving(2, 5, 0, (HEAD_BYTES, 1))
    under_way.__enter__()
    with pytest.raises(Refused, match="under way"):
        mirrors.receiving(2, 6, 0, (HEAD_BYTES, 1)).__enter__()
    mirrors.restarted(1, 4)
    with pytest.raises(Refused, match="restarts: found 0"):
        under_way.__exit__(None, None, None)
    assert mirrors.steps(0) == {2: set(), 3: set()}


@pytest.mark.parametrize(
    ("identity", "token", "status"),
    [
        (RunIdentity("run", "uid", 2), "secret", 409),
        (RunIdentity("run", "other", 3), "secret", 409),
        (IDENTITY, "wrong", 403),
    ],
)
def test_nobody_else_is_heard(mirrors: Mirrors, identity: RunIdentity, token: str, status: int) -> None:
    port = serve(None, "127.0.0.1", 0, pods=2, identity=IDENTITY, token="secret", mirrors=mirrors)
    with pytest.raises(Unreachable, match=f"status {status}"):
        NextPod("127.0.0.1", port, identity, token).steps(5)
    with mirrors.receiving(2, 5, 0, (HEAD_BYTES, 1)) as slot:
        assert slot is not None


def test_a_lost_pod_whose_address_is_still_given_is_not_taken_for_another_one(
    neighbour: NextPod, memories: dict[int, RankMemory], mirrors: Mirrors
) -> None:
    fill(memories[2].slots[0], 2, 5)
    neighbour.meet("another")
    with pytest.raises(Unreachable, match="status 409"):
        neighbour.steps(0)
    assert not put(neighbour, memories[2].slots[0], 5)
    neighbour.meet(mirrors.instance)
    until(lambda: put(neighbour, memories[2].slots[0], 5))
    assert neighbour.steps(-1)[2] == {5}


def test_ranks_of_others_and_copies_beyond_the_limit_are_refused(
    neighbour: NextPod, memories: dict[int, RankMemory]
) -> None:
    slot = memories[2].slots[0]
    fill(slot, 2, 5)
    with pytest.raises(Unreachable):
        neighbour.put(1, slot, 5, 0, always)
    slot.seal(5, b"", HEAD_BYTES + 2 * SIZE + 1)
    os.ftruncate(slot.file, HEAD_BYTES + 2 * SIZE + 1)
    with pytest.raises(Unreachable):
        neighbour.put(2, slot, 5, 0, always)
    assert neighbour.steps(-1) == {2: set(), 3: set()}


def test_what_is_not_to_be_had_leaves_nothing_and_is_given_up_in_time(neighbour: NextPod) -> None:
    others = {rank: RankMemory(rank, mirrored=True) for rank in RANKS}
    Mirroring(others, NextPod("127.0.0.1", 1, IDENTITY, "secret")).fetch(0, 0.0, always)
    assert not any(memory.steps for memory in others.values())
    with pytest.raises(Unreachable, match="status 409"):
        neighbour.get(2, 5, others[2].slots[0])
