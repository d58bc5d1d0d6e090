"""Deltas between two snapshots: which tensors are how in one, and when there is none."""

import pytest
import torch

from echorl_core.wire.weights import TensorChange
from echorl_trainer.deltas import delta_of
from echorl_trainer.host_files import file_layouts
from echorl_trainer.snapshots import Snapshot, Snapshots

SHAPES = {"few": (1000,), "many": (10, 100), "none": (0,), "same": (4000,)}


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def versions(request: pytest.FixtureRequest) -> list[Snapshot]:
    """Two versions: one element of ``few`` is another, and 600 of ``many``. In two files."""
    layouts = file_layouts(SHAPES, request.param, single_name="model.safetensors", file_bytes=4500)
    snapshots = Snapshots(layouts, {}, pinned=False)
    taken = [snapshots.take(version, timeout_s=1, check=lambda: None) for version in (1, 2)]
    for snapshot in taken:
        for file in snapshot.files:
            file.data.copy_(torch.linspace(-1, 1, len(file.data)))
    tensors = {name: one for file in taken[1].files for name, one in file.tensors().items()}
    tensors["few"][7] = float("inf")
    tensors["many"].view(-1)[:600] = 5
    return taken


def test_each_tensor_is_said_in_the_shorter_way(versions: list[Snapshot]) -> None:
    before, after = versions
    width = after.files[0].layout.dtype.itemsize
    delta = delta_of(before, after, threads=2)
    assert delta is not None
    # A gap of 7 and a value; then all values, as 600 gaps and values are more than half of that.
    assert delta.described.tensors == {
        "few": TensorChange(offset=0, size=1 + width, changed=1),
        "many": TensorChange(offset=1 + width, size=1000 * width, changed=None),
    }
    assert delta.described.size == delta.file.path.stat().st_size == 1 + 1001 * width
    assert delta.file.path.read_bytes()[0] == 7
    assert (delta.described.changed, delta.described.elements) == (601, 6000)


def test_more_than_half_is_no_delta(versions: list[Snapshot]) -> None:
    before, after = versions
    for file in after.files:
        same = file.tensors().get("same")
        if same is not None:
            same[:2100] += 3
    assert delta_of(before, after, threads=2) is None
