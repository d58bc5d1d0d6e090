"""Recorded copies against the loading that they take the place of, on a model that loads as vLLM's do."""

import pytest
import torch
from torch import nn

from echorl_vllm.recording import Copies, NotPlainError, check_equal, record

WIDTH, VOCABULARY, PADDED = 8, 10, 16


class Model(nn.Module):
    """One rank of two: fused projections hold rows of three tensors, the output projection columns of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(PADDED, WIDTH, dtype=torch.bfloat16))
        self.fused = nn.Parameter(torch.full((3 * WIDTH // 2, WIDTH), 5, dtype=torch.bfloat16))
        self.out = nn.Parameter(torch.full((WIDTH, WIDTH // 2), 5, dtype=torch.bfloat16))
        self.norm = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))

    def load_weights(self, tensors):
        half = WIDTH // 2
        for name, tensor in tensors:
            if name in "qkv":
                self.fused.data.narrow(0, "qkv".index(name) * half, half).copy_(tensor.narrow(0, half, half))
            elif name == "out":
                self.out.data.copy_(tensor[:, half:])
            elif name == "embed":
                self.embed.data[:VOCABULARY].copy_(tensor)
                self.embed.data[VOCABULARY:].fill_(0)
            elif name == "norm":
                self.norm.data.copy_(tensor)


def published(seed, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
    shapes |= {"embed": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
    # Views of one memory, as tensors of a mapped file are.
    flat = torch.randn(sum(torch.Size(shape).numel() for shape in shapes.values()), generator=generator).to(dtype)
    parts = flat.split([torch.Size(shape).numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def held(model):
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def recorded(model, tensors):
    return record(dict(model.named_parameters()), model.load_weights, tensors)


def test_weights_that_are_held_in_fp8_are_not_copied():
    model = Model()
    model.out = nn.Parameter(model.out.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(NotPlainError, match=r"out: torch.bfloat16 \[8, 4\] is loaded into torch.float8_e4m3fn"):
        recorded(model, published(1))


def test_copies_do_what_loading_does():
    model, loaded = Model(), Model()
    model.load_weights(published(1).items())
    pieces = recorded(model, published(1))
    assert len(pieces) == 6
    check_equal(pieces, published(1))
    copies = Copies(pieces)
    before, addresses = held(model), [one.data_ptr() for one in model.parameters()]
    copies.stage(published(2))
    assert all(torch.equal(one, before[name]) for name, one in held(model).items()), "staging touches no parameter"
    copies.replay()
    loaded.load_weights(published(2).items())
    expected = held(loaded)
    assert all(torch.equal(one, expected[name]) for name, one in held(model).items())
    assert not torch.equal(expected["fused"], before["fused"])
    assert [one.data_ptr() for one in model.parameters()] == addresses


def test_a_dry_run_writes_nothing():
    model = Model()
    before = held(model)
    recorded(model, published(1))
    assert all(torch.equal(one, before[name]) for name, one in held(model).items())


def test_a_name_more_for_the_same_tensor_is_no_tensor_more():
    tensors = published(1)
    assert len(recorded(Model(), {"head": tensors["embed"], **tensors})) == 6


class Doubling(Model):
    def load_weights(self, tensors):
        super().load_weights((name, tensor * 2) for name, tensor in tensors)


class Scaling(Model):
    def load_weights(self, tensors):
        super().load_weights(tensors)
        self.norm.data.mul_(2)


class Replacing(Model):
    def load_weights(self, tensors):
        super().load_weights(tensors)
        self.norm.data = torch.ones(WIDTH, dtype=torch.bfloat16)


class Forgetting(Model):
    def load_weights(self, tensors):
        super().load_weights((name, tensor) for name, tensor in tensors if name != "k")


class Unpadded(Model):
    def load_weights(self, tensors):
        for name, tensor in tensors:
            if name == "embed":
                self.embed.data[:VOCABULARY].copy_(tensor)
            else:
                super().load_weights([(name, tensor)])


class Repeating(Model):
    def load_weights(self, tensors):
        for name, tensor in tensors:
            super().load_weights([(name, tensor), *([("norm", tensor[0])] if name == "q" else [])])


class Refusing(Model):
    def load_weights(self, tensors):
        raise AssertionError("another shape")


class Repacked(Model):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.empty(0))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Doubling, "a value that is loaded is not a part of a published tensor"),
        (Scaling, "norm: loading does aten.mul_"),
        (Replacing, "norm: loading puts another tensor in its place"),
        (Forgetting, "k: is not loaded"),
        (Unpadded, "embed: is not filled as a whole"),
        (Repeating, "norm: is filled twice"),
        (Refusing, "a dry run of loading ends with AssertionError: another shape"),
        (Repacked, "extra: is empty"),
    ],
)
def test_loading_that_is_more_than_copies_is_told_and_changes_nothing(kind, message):
    model = kind()
    before = held(model)
    with pytest.raises(NotPlainError, match=message):
        recorded(model, published(1))
    assert all(torch.equal(one, before[name]) for name, one in held(model).items())


def test_another_dtype_than_published_is_told():
    with pytest.raises(NotPlainError, match=r"float32 \[4, 8\] is loaded into torch.bfloat16 \[4, 8\]"):
        recorded(Model(), published(1, torch.float32))


def test_a_parameter_that_was_repacked_after_loading_is_told():
    model = Model()
    model.load_weights(published(1).items())
    model.out.data.copy_(model.out.data.flip(0))
    with pytest.raises(NotPlainError, match="out: is held otherwise than it was published"):
        check_equal(recorded(model, published(1)), published(1))
