import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from echorl_core.memory_copies import HEAD_BYTES, RankMemory, Restarted, held_by_all, slots_from


@pytest.fixture
def memories() -> Iterator[dict[int, RankMemory]]:
    made = {rank: RankMemory(rank) for rank in range(2)}
    yield made
    for memory in made.values():
        memory.close()


def test_a_slot_is_whole_from_its_seal_on_and_until_it_is_cleared(memories: dict[int, RankMemory]) -> None:
    slot, other = memories[0].slots
    assert (slot.step, other.step) == (None, None)
    os.pwrite(slot.file, b"content", HEAD_BYTES)
    assert slot.step is None
    slot.seal(0, b"of step 0", HEAD_BYTES + 7)
    assert (slot.step, slot.record(), other.step) == (0, b"of step 0", None)
    assert os.pread(slot.file, 7, HEAD_BYTES) == b"content"
    slot.clear()
    assert slot.step is None


def test_the_newest_step_that_all_ranks_hold_counts(memories: dict[int, RankMemory]) -> None:
    for rank, steps in ((0, (4, 5)), (1, (3, 4))):
        for slot, step in zip(memories[rank].slots, steps, strict=True):
            assert held_by_all(memories) is None
            slot.seal(step, b"", HEAD_BYTES)
    assert held_by_all(memories) == 4
    assert held_by_all({}) is None


def test_what_a_killed_process_sealed_is_there_for_the_next_one(memories: dict[int, RankMemory]) -> None:
    memory = memories[1]
    code = (
        "import os; from echorl_core.memory_copies import slots_from; "
        "slots = slots_from(os.environ); slots[1].seal(7, b'words', 65536); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, **memory.environment()}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, pass_fds=memory.files, check=False)
    assert ended.returncode == -9
    assert memory.steps == {7}
    assert memory.slots[1].record() == b"words"


def test_what_a_process_is_told_by_its_environment() -> None:
    assert slots_from({}) is None
    assert Restarted.from_environment({}) is None
    told = Restarted(2, "rank 1 was ended by signal 9")
    assert Restarted.from_environment(told.environment()) == told
