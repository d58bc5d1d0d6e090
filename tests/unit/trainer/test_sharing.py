"""How a version's files are dealt out to ranks, and how what they tell becomes one delta."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.wire.weights import DeltaPart, PolicyId, TensorChange, WeightDelta
from echorl_trainer.host_files import file_layouts
from echorl_trainer.sharing import DeltaShare, Share, changed_ratio, dealt, file_bytes, joined

BASE = PolicyId(attempt=1, version=1, digest="d" * 64)
SIZES = st.lists(st.integers(0, 1 << 30), max_size=60)


def loads(sizes: list[int], owners: list[int], ranks: int) -> list[int]:
    return [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]


@given(SIZES, st.integers(1, 16))
def test_every_file_has_one_rank_and_no_rank_has_more_than_the_mean_and_a_file(sizes: list[int], ranks: int) -> None:
    owners = dealt(sizes, ranks)
    assert len(owners) == len(sizes)
    assert set(owners) <= set(range(ranks))
    held = loads(sizes, owners, ranks)
    assert sum(held) == sum(sizes)
    assert max(held) <= sum(sizes) / ranks + max(sizes, default=0)


def test_the_largest_go_first_and_equal_ones_to_the_lowest_rank() -> None:
    assert dealt([3, 3, 2, 2, 2], 2) == [0, 1, 0, 1, 0]
    assert dealt([1, 9, 1, 1], 2) == [1, 0, 1, 1]
    assert dealt([5, 5], 1) == [0, 0]
    assert dealt([5], 3) == [0]


@given(
    st.dictionaries(st.text("ab.", min_size=1), st.integers(0, 3000), min_size=1, max_size=40),
    st.integers(2, 8),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_ranks_have_equal_bytes_but_for_a_fourth_of_a_share_and_a_tensor(
    elements: dict[str, int], ranks: int, dtype: torch.dtype
) -> None:
    sizes = {name: count * dtype.itemsize for name, count in elements.items()}
    total = sum(sizes.values())
    most = file_bytes(total, ranks, 1 << 30)
    shapes = {name: (count,) for name, count in elements.items()}
    layouts = file_layouts(shapes, dtype, single_name="x", file_bytes=most)
    assert [name for one in layouts for name in one.shapes] == list(elements), "the order in which all are gathered"
    data = [one.size - len(one.header) for one in layouts]
    assert max(loads(data, dealt(data, ranks), ranks)) <= total / ranks + max(total / ranks / 4, *sizes.values(), 1)


def test_one_rank_has_files_as_large_as_may_be() -> None:
    assert file_bytes(40, 1, 1 << 30) == 1 << 30
    assert file_bytes(64 << 30, 2, 1 << 30) == 1 << 30
    assert file_bytes(4000, 5, 1 << 30) == 200
    assert file_bytes(3, 4, 1 << 30) == 1


def test_deltas_follow_each_other_in_one() -> None:
    first = DeltaShare(5, {"a": TensorChange(offset=0, size=2, changed=1), "b": TensorChange(offset=2, size=3)}, 2, 10)
    second = DeltaShare(0, {}, 0, 20)
    third = DeltaShare(4, {"c": TensorChange(offset=0, size=4, changed=2)}, 2, 10)
    folders = [None, "http://h:2/v/", "http://h:3/v/"]
    shares = [Share(folder, delta=own) for folder, own in zip(folders, (first, second, third), strict=True)]
    assert joined(BASE, shares) == WeightDelta(
        base=BASE,
        size=9,
        tensors={
            "a": TensorChange(offset=0, size=2, changed=1),
            "b": TensorChange(offset=2, size=3),
            "c": TensorChange(offset=5, size=4, changed=2),
        },
        parts=[DeltaPart(folder=folder, size=size) for folder, size in zip(folders, (5, 0, 4), strict=True)],
    )
    assert changed_ratio([first, second, third]) == 4 / 40
    assert joined(BASE, [shares[0]]) == WeightDelta(base=BASE, size=5, tensors=first.tensors)
    assert joined(BASE, [*shares[:2], Share("http://h:3/v/")]) is None
