"""Copies of nested tensors in host memory: what is copied together, what was put elsewhere, and the way back."""

import itertools
import math
import mmap
import tempfile

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from echorl_trainer.collected import Settled
from echorl_trainer.staging import HostCopies, read_back

CPU = torch.device("cpu")
MANY = 700


def state_of() -> dict[str, object]:
    """Tensors of all sizes, dtypes and layouts; more of them together than are copied at once."""
    begin = itertools.count()

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        first, count = next(begin), math.prod(shape)
        return torch.arange(first, first + count, dtype=torch.int32).remainder_(97).to(dtype).view(shape)

    weights = {
        "large": made(4_200_000),
        "none": made(0),
        "turned": made(7, 5).t(),
        "square": made(5, 5),
        "scalar": made(),
    }
    weights |= {f"half {number}": made(2_200_001, dtype=torch.bfloat16) for number in range(3)}
    moments = {
        f"{number}": {"count": made(), "mean": made(3), "code": made(5, dtype=torch.int8)} for number in range(MANY)
    }
    moments |= {f"middle {number}": {"mean": made(3_500_000)} for number in range(5)}
    optimizer = {"state": Settled(moments), "groups": [{"lr": 0.5}]}
    return {"model": Settled(weights), "optimizer": optimizer, "random": made(9)}


def leaves(value: object, path: str = "") -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {name: one for key, item in items for name, one in leaves(item, f"{path}/{key}").items()}


class Copies(TorchDispatchMode):
    """Counts the places that are written to; those of one storage that are written together count once."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "copy_" in str(function):
            written = args[0] if isinstance(args[0], list) else [args[0]]
            self.count += len({one.untyped_storage().data_ptr() for one in written})
        return function(*args, **(kwargs or {}))


@pytest.fixture
def whole():
    """A file in memory that grows: what of it was given out, and all of it, once no more is."""
    with tempfile.TemporaryFile() as file:
        given = [65_536]

        def provide(size: int) -> tuple[mmap.mmap, int]:
            start = given[-1]
            given.append(start + size + -size % mmap.ALLOCATIONGRANULARITY)
            file.truncate(given[-1])
            return mmap.mmap(file.fileno(), size, offset=start), start

        yield provide, lambda: mmap.mmap(file.fileno(), 0)


def test_a_copy_is_what_was_there_and_is_read_back_from_where_it_says(whole):
    provide, everything = whole
    copies, state = HostCopies(CPU, provide, together=True), state_of()
    for turn in range(3):
        expected = {path: one.clone() for path, one in leaves(state).items()}
        copied = copies.stage(state)
        described = copies.described(state)
        for one in leaves(state).values():
            one.add_(1)
        for found in (copied, read_back(described, everything())):
            assert found["optimizer"]["groups"] == [{"lr": 0.5}]
            tensors = leaves(found)
            assert tensors.keys() == expected.keys()
            for path, one in expected.items():
                assert (one.dtype, one.shape) == (tensors[path].dtype, tensors[path].shape)
                assert torch.equal(one, tensors[path]), (turn, path)
    assert copies.size_bytes == sum(one.nbytes for one in expected.values())


def test_small_tensors_are_copied_together():
    copies, state = HostCopies(CPU, together=True), state_of()
    copies.stage(state)
    with Copies() as made:
        copies.stage(state)
    assert made.count < 20 < MANY


@pytest.mark.parametrize("turned", [False, True])
def test_what_lies_elsewhere_now_is_copied_from_there(turned):
    copies, state = HostCopies(CPU, together=True), state_of()
    copies.stage(state)
    before = state["model"]
    for path in ("scalar", "half 1", "large", "square", "turned"):
        other = before[path] + 1
        other = other.t().contiguous().t() if turned else other
        state["model"] = Settled({**before, path: other})
        for _ in range(2):
            copied = leaves(copies.stage(state))
            assert all(torch.equal(one, copied[name]) for name, one in leaves(state).items()), path
            other.add_(1)


def test_a_tree_that_is_no_longer_there_takes_nothing_of_the_others_along():
    copies, state = HostCopies(CPU, together=True), state_of()
    copies.stage(state)
    del state["model"]
    for one in leaves(state).values():
        one.add_(1)
    copied = leaves(copies.stage(state))
    assert copied.keys() == leaves(state).keys()
    assert all(torch.equal(one, copied[name]) for name, one in leaves(state).items())
