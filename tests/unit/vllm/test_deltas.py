"""What an engine makes of a delta: the same files, or the whole version where there is no base or the delta is bad."""

import re

import msgspec
import pytest
import torch

from echorl_core.wire.weights import DELTA_FILE, PolicyId, TensorChange, WeightManifest, decode
from echorl_testing.engines.published import add_delta, published_tensors, write_manifest
from echorl_testing.engines.staging_worker import Worker, published

NORM = "model.norm.weight"


def little(tensors):
    """Change a few elements, a sign and a NaN's like among them."""
    tensors[NORM][3] = -tensors[NORM][3]
    tensors["model.layers.0.mlp.up_proj.weight"].view(-1)[[0, 700, 2047]] += 0.5


@pytest.fixture
def versions(model, environment):
    """Folders of versions 1 and 2, and the digest of each; 2 is published as a delta from 1 as well."""
    first = published(model, environment / "v1")
    published(model, environment / "v2", version=2, change=little)
    return environment, first, add_delta(environment / "v2", environment / "v1")


def whole_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def check_holds_version_2(worker, model, digest):
    expected = {name: tensor + 1 for name, tensor in published_tensors(model[0]).items()}
    little(expected)
    worker.weights.apply(PolicyId(attempt=1, version=2, digest=digest))
    assert expected.keys() == worker.model.keys()
    assert all(torch.equal(worker.model[name], tensor) for name, tensor in expected.items())


def test_who_has_the_base_fetches_the_delta_alone(worker, model, versions):
    folder, first, second = versions
    status = worker.staged(folder / "v1", first)
    assert (status.delta, status.received_bytes) == ("none", whole_bytes(folder / "v1"))
    for file in (folder / "v2").glob("*.safetensors"):
        file.unlink()
    status = worker.staged(folder / "v2", second, version=2)
    assert (status.state, status.error, status.delta) == ("staged", None, "used")
    assert status.received_bytes == (folder / "v2" / DELTA_FILE).stat().st_size < 60
    assert status.bytes == whole_bytes(folder / "v1")
    (kept,) = (one for one in (folder / "spool").iterdir() if one.is_dir())
    assert kept.name == second
    assert DELTA_FILE not in {one.name for one in kept.iterdir()}
    other = Worker(model).staged(folder / "v2", second, version=2)
    assert (other.state, other.received_bytes, other.delta) == ("staged", 0, "none")
    check_holds_version_2(worker, model, second)


def test_a_base_that_is_staged_elsewhere_stays_as_it_was(worker, model, versions):
    folder, first, second = versions
    slow = Worker(model)
    for one in (slow, worker):
        one.staged(folder / "v1", first)
    worker.staged(folder / "v2", second, version=2)
    slow.weights.apply(PolicyId(attempt=1, version=1, digest=first))
    for name, tensor in published_tensors(model[0]).items():
        assert torch.equal(slow.model[name], tensor + 1)


def test_a_version_that_changed_nothing_has_an_empty_delta(worker, model, environment):
    first = published(model, environment / "v1")
    published(model, environment / "v2", version=2)
    second = add_delta(environment / "v2", environment / "v1")
    worker.staged(environment / "v1", first)
    status = worker.staged(environment / "v2", second, version=2)
    assert (status.state, status.received_bytes, status.delta) == ("staged", 0, "used")


def test_a_newcomer_fetches_the_whole_version(worker, model, versions, caplog):
    folder, _, second = versions
    with caplog.at_level("INFO"):
        status = worker.staged(folder / "v2", second, version=2)
    assert (status.state, status.delta, status.received_bytes) == ("staged", "no_base", whole_bytes(folder / "v2"))
    assert "version 2 is fetched whole: attempt 1 version 1 digest" in caplog.text
    check_holds_version_2(worker, model, second)


def described(folder, **delta):
    """Publish another description of the delta in ``folder``; the manifest's digest."""
    manifest = decode((folder / "manifest.json").read_bytes(), WeightManifest)
    return write_manifest(
        folder, msgspec.structs.replace(manifest, delta=msgspec.structs.replace(manifest.delta, **delta))
    )


def rewritten(data):
    def rewrite(folder, _):
        (folder / DELTA_FILE).write_bytes(data((folder / DELTA_FILE).read_bytes()))

    return rewrite


def norm_as(**changed):
    def rewrite(folder, manifest):
        tensors = manifest.delta.tensors
        return described(folder, tensors={**tensors, NORM: msgspec.structs.replace(tensors[NORM], **changed)})

    return rewrite


def unknown_tensor(folder, manifest):
    return described(folder, tensors={**manifest.delta.tensors, "other": TensorChange(offset=0, size=0, changed=0)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewritten(lambda data: data[:-1]), "delta.bin: .* bytes, the weight manifest says"),
        (rewritten(lambda data: data + b"x"), "delta.bin: longer than"),
        (rewritten(lambda data: data[:-1] + bytes([data[-1] ^ 1])), "xxh3 is .*, the weight manifest says"),
        (rewritten(lambda data: b"\xff" * 4 + data[4:]), "gaps reach element .*, the tensor has"),
        (lambda folder, _: (folder / DELTA_FILE).unlink(), "No such file"),
        (norm_as(offset=10_000), f"{NORM}: the delta's .* bytes end before its part does"),
        (norm_as(offset=-1), f"{NORM}: the delta's .* bytes end before its part does"),
        (norm_as(changed=2), f"{NORM}: 5 bytes cannot hold 2 elements of 4 bytes"),
        (norm_as(changed=0), f"{NORM}: gaps "),
        (norm_as(changed=None), f"{NORM}: the delta has 5 bytes for its 128"),
        (unknown_tensor, "other is no tensor of the version"),
    ],
)
def test_a_bad_delta_is_named_and_the_whole_version_fetched(worker, model, versions, change, message, caplog):
    folder, first, second = versions
    worker.staged(folder / "v1", first)
    worker.weights.apply(PolicyId(attempt=1, version=1, digest=first))
    held = {name: tensor.clone() for name, tensor in worker.model.items()}
    second = change(folder / "v2", decode((folder / "v2" / "manifest.json").read_bytes(), WeightManifest)) or second
    status = worker.staged(folder / "v2", second, version=2)
    assert (status.state, status.error, status.delta) == ("staged", None, "refused")
    assert status.received_bytes >= whole_bytes(folder / "v2")
    assert all(torch.equal(worker.model[name], tensor) for name, tensor in held.items())
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert re.search(f"version 2 is fetched whole: its delta from .*: .*{message}", warning)
    check_holds_version_2(worker, model, second)


def test_a_base_that_was_damaged_on_the_disk_is_noticed(worker, model, versions):
    folder, first, second = versions
    worker.staged(folder / "v1", first)
    file = folder / "spool" / first / "part-0.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert worker.staged(folder / "v2", second, version=2).delta == "refused"
    check_holds_version_2(worker, model, second)


def test_a_base_of_no_digest_is_refused(worker, model, versions):
    folder, _, _ = versions
    second = described(folder / "v2", base=PolicyId(attempt=1, version=1, digest="../../x"))
    status = worker.staged(folder / "v2", second, version=2)
    assert status.state == "failed"
    assert "digest '../../x': accepted is a sha256" in status.error
