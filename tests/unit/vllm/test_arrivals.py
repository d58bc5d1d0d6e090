"""Tensors are checked and brought to the device while others come; memory of what nobody reads is used again."""

import json
import queue
import threading

import pytest
import torch
from safetensors.torch import load_file

from echorl_core.wire.weights import WeightManifest, decode
from echorl_testing.engines.staging_worker import Worker, published
from echorl_vllm.arrivals import Arrivals
from echorl_vllm.unread import is_unread
from echorl_vllm.validation import WeightsRefusedError

PART = "part-0.safetensors"


def manifest_of(folder):
    return decode((folder / "manifest.json").read_bytes(), WeightManifest)


def ends(path):
    """Each tensor with the first byte behind it, in order; and the first byte behind the header."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    found = ((name, begin + header[name]["data_offsets"][1]) for name in load_file(path))
    return sorted(found, key=lambda one: one[1]), begin


def test_a_tensor_is_used_when_its_last_byte_is_there_and_not_before(model, tmp_path):
    published(model, tmp_path / "p")
    manifest, data = manifest_of(tmp_path / "p"), (tmp_path / "p" / PART).read_bytes()
    coming = tmp_path / PART
    with coming.open("wb", buffering=0) as file:
        file.truncate(len(data))
        used = queue.Queue()
        with Arrivals(manifest, lambda name, tensor: used.put((name, tensor.clone()))) as arrivals:
            arrived = arrivals.of(coming)
            tensors, begin = ends(tmp_path / "p" / PART)
            written = 0
            for until in (5, begin - 1, begin, *(end - 1 for _, end in tensors[:1])):
                written += file.write(data[written:until])
                arrived(written)
            arrivals.wait(lambda: None)
            assert used.empty()
            for name, end in tensors:
                written += file.write(data[written:end])
                arrived(written)
                found, tensor = used.get(timeout=60)
                assert found == name
                assert torch.equal(tensor, load_file(tmp_path / "p" / PART)[name])
            arrivals.wait(lambda: None)
            assert used.empty()


def test_a_damaged_tensor_is_named_and_not_used(model, tmp_path):
    published(model, tmp_path / "p")
    path = tmp_path / "p" / PART
    data = bytearray(path.read_bytes())
    (name, end), *_ = ends(path)[0]
    data[end - 1] ^= 1
    path.write_bytes(data)
    used = []
    with Arrivals(manifest_of(tmp_path / "p"), lambda name, _: used.append(name)) as arrivals:

        def come():
            arrivals.of(path)(end)
            arrivals.wait(lambda: None)

        with pytest.raises(WeightsRefusedError, match=f"{name}: xxh3 is"):
            come()
    assert name not in used


@pytest.mark.parametrize("part", ["part-0.safetensors", "part-1.safetensors"])
def test_what_was_brought_as_it_came_is_in_place_only_if_all_of_it_was_good(model, environment, part):
    brought, lock = {}, threading.Lock()

    def bring(tensors):
        with lock:
            brought.update({name: tensor.clone() for name, tensor in tensors.items()})
        return True

    worker = Worker(model, bring=bring)
    digest = published(model, environment / "p")
    policy = worker.stage(environment / "p", digest)
    status = worker.settled()
    assert (status.error, status.in_place, status.is_staged(policy)) == (None, True, True)
    expected = load_file(environment / "p" / PART) | load_file(environment / "p" / "part-1.safetensors")
    assert brought.keys() == expected.keys()
    assert all(torch.equal(brought[name], tensor) for name, tensor in expected.items())
    digest = published(model, environment / "q", version=2)
    damaged = bytearray((environment / "q" / part).read_bytes())
    damaged[-1] ^= 1
    (environment / "q" / part).write_bytes(damaged)
    status = worker.staged(environment / "q", digest, version=2)
    assert (status.state, status.in_place) == ("failed", False)
    assert "xxh3 is" in status.error
    assert worker.weights.apply(policy).error is not None, "its buffer was written to"


def test_a_version_that_is_refused_is_not_fetched(model, environment):
    worker = Worker(model)
    digest = published(model, environment / "p", change=lambda tensors: tensors.pop("model.norm.weight"))
    for file in (environment / "p").glob("*.safetensors"):
        file.unlink()
    status = worker.staged(environment / "p", digest)
    assert "tensors missing: model.norm.weight" in status.error


def spooled(environment):
    return {one.stat().st_ino for one in (environment / "spool").glob("*/part-*")}


def test_files_that_nobody_reads_are_written_to_again(model, environment):
    worker, inodes = Worker(model), []
    for version in (1, 2, 3):
        folder = environment / f"v{version}"
        digest = published(model, folder, version=version, change=lambda tensors, by=version: scale(tensors, by))
        policy = worker.stage(folder, digest, version=version)
        assert worker.settled().is_staged(policy)
        assert worker.weights.apply(policy).error is None
        inodes.append(spooled(environment))
        for name, tensor in load_file(folder / PART).items():
            assert torch.equal(worker.model[name], tensor)
    assert inodes[0] == inodes[1] == inodes[2]
    assert len(inodes[0]) == 2


def test_files_that_somebody_reads_stay_as_they_are(model, environment):
    reader, worker = Worker(model), Worker(model)
    first = published(model, environment / "v1")
    held = reader.stage(environment / "v1", first)
    assert reader.settled().is_staged(held)
    before = spooled(environment)
    digest = published(model, environment / "v2", version=2, change=lambda tensors: scale(tensors, 2))
    policy = worker.stage(environment / "v2", digest, version=2)
    assert worker.settled().is_staged(policy)
    assert not before & spooled(environment)
    assert reader.weights.apply(held).error is None
    assert all(torch.equal(reader.model[name], one) for name, one in load_file(environment / "v1" / PART).items())


def scale(tensors, by):
    for tensor in tensors.values():
        tensor.mul_(by)


def test_a_file_is_read_while_it_is_open_or_mapped(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"content")
    assert is_unread(file)
    with file.open("rb"):
        assert not is_unread(file)
    mapped = torch.from_file(str(file), shared=False, size=7, dtype=torch.uint8)
    assert not is_unread(file)
    part = mapped[3:]
    del mapped
    assert not is_unread(file)
    del part
    assert is_unread(file)
    assert not is_unread(tmp_path / "none")
