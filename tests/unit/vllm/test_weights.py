"""A worker's staging and applying, on real safetensors files, without vLLM."""

import hashlib
import json
import re

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from echorl_core.wire.weights import PolicyId, WeightManifest
from echorl_testing.engines.published import published_tensors, write_manifest
from echorl_testing.engines.staging_worker import Worker, published
from echorl_vllm.validation import ModelForm, WeightsRefusedError, model_form, with_head

HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"


def test_a_staged_version_is_applied_once_and_answers_the_same_again(worker, model, environment):
    digest = published(model, environment / "p")
    status = worker.staged(environment / "p", digest)
    assert (status.state, status.error, status.digest) == ("staged", None, digest)
    assert status.bytes == sum(path.stat().st_size for path in (environment / "p").glob("*.safetensors"))
    assert worker.model == {}
    wanted = PolicyId(attempt=1, version=1, digest=digest)
    first = worker.weights.apply(wanted)
    assert first.applied.policy == wanted
    for name, tensor in published_tensors(model[0]).items():
        assert torch.equal(worker.model[name], tensor + 1)
    worker.model.clear()
    assert worker.weights.apply(wanted) == first
    assert worker.model == {}
    assert worker.weights.report().stage.state == "idle"
    worker.staged(environment / "p", digest)
    assert worker.weights.apply(wanted).applied.policy == wanted
    assert HEAD in worker.model


def test_only_what_is_staged_is_applied(worker, model, environment):
    digest = published(model, environment / "p")
    nothing = worker.weights.apply(PolicyId(attempt=1, version=1, digest=digest))
    assert (nothing.broken, nothing.applied) == (False, None)
    assert "nothing is staged" in nothing.error
    worker.staged(environment / "p", digest)
    for wrong in ({"version": 2}, {"attempt": 2}, {"digest": "0" * 64}):
        answer = worker.weights.apply(PolicyId(**{"attempt": 1, "version": 1, "digest": digest, **wrong}))
        assert "is staged" in answer.error
    assert worker.model == {}
    worker.weights.stager.abort()
    assert worker.weights.stager.status().state == "idle"


def test_a_load_that_fails_is_told_apart(worker, model, environment):
    digest = published(model, environment / "p")
    worker.staged(environment / "p", digest)
    worker.refuses = NORM
    answer = worker.weights.apply(PolicyId(attempt=1, version=1, digest=digest))
    assert answer.broken
    assert answer.error == f"RuntimeError: {NORM}"
    assert worker.weights.report().applied is None


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, make):
    return lambda tensors: tensors.update({name: make(tensors.get(name))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(NORM), "tensors missing: model.norm.weight"),
        (put("model.extra", lambda _: torch.zeros(2)), "does not have: model.extra"),
        (put(NORM, lambda tensor: tensor[:-1]), r"model.norm.weight: shape \[31\], the model has \[32\]"),
        (put(NORM, lambda tensor: tensor.half()), "model.norm.weight: dtype F16, accepted: F32"),
    ],
)
def test_weights_that_do_not_fit_are_refused(worker, model, environment, change, message):
    status = worker.staged(environment / "p", published(model, environment / "p", change=change))
    assert status.state == "failed"
    assert re.search(message, status.error)


def test_the_head_of_a_tied_model_alone_may_be_left_out(worker, model, environment):
    digest = published(model, environment / "p", change=drop(HEAD))
    status = worker.staged(environment / "p", digest)
    assert (status.state == "staged") is model[1]
    if not model[1]:
        assert "tensors missing: lm_head.weight" in status.error
        return
    worker.weights.apply(PolicyId(attempt=1, version=1, digest=digest))
    assert torch.equal(worker.model[HEAD], worker.model[EMBEDDING])


def test_a_head_that_the_engines_model_lacks_is_not_loaded():
    tensors = {EMBEDDING: torch.ones(3, 2), HEAD: torch.ones(3, 2), NORM: torch.ones(2)}
    form = ModelForm(tensors={}, tied=True, has_head=False)
    assert with_head(tensors, form).keys() == {EMBEDDING, NORM}
    assert with_head({EMBEDDING: tensors[EMBEDDING]}, form).keys() == {EMBEDDING}


def test_a_tied_head_must_equal_the_embedding(worker, model, environment):
    digest = published(model, environment / "p", change=put(HEAD, lambda tensor: tensor * 2))
    status = worker.staged(environment / "p", digest)
    assert (status.state == "failed") is model[1]
    if model[1]:
        assert f"{HEAD}: differs from {EMBEDDING}" in status.error


def test_the_engine_dtype_is_accepted_next_to_the_folder_dtype(model, environment):
    def to_bfloat16(tensors):
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    digest = published(model, environment / "p", change=to_bfloat16)
    assert Worker(model, engine_dtype="BF16").staged(environment / "p", digest).state == "staged"
    assert "accepted: F32" in Worker(model).staged(environment / "p", digest).error


def change_manifest(folder, **fields):
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=WeightManifest)
    return write_manifest(folder, msgspec.structs.replace(manifest, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"run_uid": "run-2"}, "run_uid is 'run-2'"), ({"attempt": 2}, "attempt is 2"), ({"version": 5}, "version is 5")],
)
def test_foreign_manifests_are_refused(worker, model, environment, fields, message):
    published(model, environment / "p")
    status = worker.staged(environment / "p", change_manifest(environment / "p", **fields))
    assert message in status.error


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"wire_version": 1}, "wire_version: found 1, accepted is 2"),
        ({"wire_version": 3}, "wire_version: found 3, accepted is 2"),
        ({"wire_version": None}, "wire_version: found 1, accepted is 2"),
        ({"compressed": True}, "unknown field `compressed`"),
    ],
)
def test_manifests_of_another_wire_are_refused_by_name(worker, model, environment, fields, message):
    published(model, environment / "p")
    path = environment / "p" / "manifest.json"
    changed = {key: value for key, value in (json.loads(path.read_bytes()) | fields).items() if value is not None}
    path.write_text(json.dumps(changed))
    status = worker.staged(environment / "p", hashlib.sha256(path.read_bytes()).hexdigest())
    assert message in status.error


def test_files_outside_the_published_folder_are_refused(worker, model, environment):
    published(model, environment / "p")
    manifest = msgspec.json.decode((environment / "p" / "manifest.json").read_bytes(), type=WeightManifest)
    for name in ("../x.safetensors", "/etc/x.safetensors", "http://h/x.safetensors", ".hidden.safetensors", "x.bin"):
        files = [msgspec.structs.replace(manifest.files[0], name=name), *manifest.files[1:]]
        status = worker.staged(environment / "p", change_manifest(environment / "p", files=files))
        assert "accepted are plain *.safetensors names" in status.error


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data[:-1]) if how == "truncate" else bytes(data) + (b"x" if how == "grow" else b""))


@pytest.mark.parametrize(("how", "message"), [("flip", "xxh3 is"), ("truncate", "bytes"), ("grow", "longer than")])
@pytest.mark.parametrize("name", ["part-1.safetensors", "manifest.json"])
def test_damaged_files_are_refused_and_leave_nothing(worker, model, environment, how, message, name):
    digest = published(model, environment / "p")
    damage(environment / "p" / name, how)
    status = worker.staged(environment / "p", digest)
    assert status.state == "failed"
    assert ("sha256" if name == "manifest.json" else message) in status.error
    assert [path.name for path in (environment / "spool").iterdir()] == [".lock"]
    published(model, environment / "p")
    assert worker.staged(environment / "p", digest).state == "staged"


def test_a_header_that_differs_from_the_manifest_is_refused(worker, model, environment):
    published(model, environment / "p")
    manifest = msgspec.json.decode((environment / "p" / "manifest.json").read_bytes(), type=WeightManifest)
    swapped = {
        name: msgspec.structs.replace(info, file="part-0.safetensors") for name, info in manifest.tensors.items()
    }
    status = worker.staged(environment / "p", change_manifest(environment / "p", tensors=swapped))
    assert "part-0.safetensors: header differs from the weight manifest" in status.error


def test_staged_tensors_outlive_the_files_and_the_next_version(worker, model, environment):
    digest = published(model, environment / "p")
    policy = worker.stage(environment / "p", digest)
    worker.settled()
    tensors = worker.weights.stager.take(policy).tensors
    other = published(model, environment / "q", version=2)
    assert worker.staged(environment / "q", other, version=2).state == "staged"
    assert not (environment / "spool" / digest).exists()
    expected = load_file(environment / "p" / "part-0.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


def test_the_model_folder_must_say_what_the_model_is(tmp_path):
    with pytest.raises(WeightsRefusedError, match="has no safetensors files"):
        model_form(tmp_path, tied=False)


def test_staging_again_leaves_a_good_one_and_repeats_a_failed_one(worker, model, environment):
    status = worker.staged(environment / "p", "0" * 64)
    assert "FileNotFoundError" in status.error
    digest = published(model, environment / "p")
    assert worker.staged(environment / "p", digest).state == "staged"
    (environment / "p" / "manifest.json").unlink()
    assert worker.staged(environment / "p", digest).state == "staged"
