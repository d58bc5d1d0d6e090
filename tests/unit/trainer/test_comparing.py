"""What is told of a version, here and by a process: which tensors are how in its delta, and when there is none."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from xxhash import xxh3_128_hexdigest

from echorl_core.wire.weights import TensorChange
from echorl_trainer.comparing import Comparer, Compares, ComparingProcess
from echorl_trainer.host_files import file_layouts
from echorl_trainer.snapshots import Snapshot, Snapshots

SHAPES = {"few": (1000,), "many": (10, 100), "none": (0,), "same": (4000,)}


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def snapshots(request: pytest.FixtureRequest) -> Snapshots:
    """For two versions, in two files each."""
    layouts = file_layouts(SHAPES, request.param, single_name="model.safetensors", file_bytes=4500)
    return Snapshots(layouts, {}, pinned=False)


@pytest.fixture
def versions(snapshots: Snapshots) -> list[Snapshot]:
    """One element of ``few`` is another in the second, and 600 of ``many``."""
    taken = [snapshots.take(version, timeout_s=1, check=lambda: None) for version in (1, 2)]
    for snapshot in taken:
        for file in snapshot.files:
            file.data.copy_(torch.linspace(-1, 1, len(file.data)))
    tensors = {name: one for file in taken[1].files for name, one in file.tensors().items()}
    tensors["few"][7] = float("inf")
    tensors["many"].view(-1)[:600] = 5
    return taken


@pytest.fixture(params=["here", "beside"])
def compare(request: pytest.FixtureRequest, snapshots: Snapshots) -> Iterator[Compares]:
    if request.param == "here":
        yield Comparer(snapshots.mapped())
        return
    process = ComparingProcess(snapshots.mapped(), deadline_s=60)
    yield process
    process.close()


def test_each_tensor_is_said_in_the_shorter_way(versions: list[Snapshot], compare: Compares) -> None:
    before, after = versions
    width = after.files[0].layout.dtype.itemsize
    delta = compare(after.number, before.number).delta
    assert delta is not None
    # A gap of 7 and a value; then all values, as 600 gaps and values are more than half of that.
    assert delta.tensors == {
        "few": TensorChange(offset=0, size=1 + width, changed=1),
        "many": TensorChange(offset=1 + width, size=1000 * width, changed=None),
    }
    assert delta.size == after.delta_file.path.stat().st_size == 1 + 1001 * width
    assert after.delta_file.path.read_bytes()[0] == 7
    assert (delta.changed, delta.elements) == (601, 6000)


def test_a_smaller_delta_takes_the_place_of_a_larger_one(versions: list[Snapshot], compare: Compares) -> None:
    before, after = versions
    compare(after.number, before.number)
    for old, new in zip(before.files, after.files, strict=True):
        old.data.copy_(new.data)
    before.files[0].tensors()["few"][3] += 1
    delta = compare(after.number, before.number).delta
    assert delta is not None
    assert list(delta.tensors) == ["few"]
    assert delta.size == after.delta_file.path.stat().st_size == 1 + after.files[0].layout.dtype.itemsize


def test_more_than_half_is_no_delta_and_leaves_no_bytes(versions: list[Snapshot], compare: Compares) -> None:
    before, after = versions
    compare(after.number, before.number)
    for file in after.files:
        same = file.tensors().get("same")
        if same is not None:
            same[:2100] += 3
    assert compare(after.number, before.number).delta is None
    assert after.delta_file.path.stat().st_size == 0


def test_digests_are_of_each_tensors_bytes(versions: list[Snapshot], compare: Compares) -> None:
    found = compare(versions[1].number, None)
    assert found.delta is None
    expected = {name: one for file in versions[1].files for name, one in file.tensors().items()}
    assert found.digests == {name: xxh3_128_hexdigest(one.view(torch.uint8).numpy()) for name, one in expected.items()}


def test_a_process_that_is_gone_is_named_with_its_code(snapshots: Snapshots, versions: list[Snapshot]) -> None:
    process = ComparingProcess(snapshots.mapped(), deadline_s=60)
    process(versions[0].number, None)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the process that compares versions has ended with code -9"):
        process(versions[1].number, None)
    process.close()


def test_an_answer_is_not_waited_for_beyond_its_deadline(snapshots: Snapshots, versions: list[Snapshot]) -> None:
    process = ComparingProcess(snapshots.mapped(), deadline_s=0.2)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match=r"not compared within 0\.2 s"):
        process(versions[0].number, None)
    os.kill(process.pid, signal.SIGCONT)
    process.close()
