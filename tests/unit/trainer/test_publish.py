"""Published versions: what readers see, what stays, and what is never published."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.weights import PolicyAnnouncement, WeightManifest
from echorl_testing.trainer.tiny_learner import alone, tiny_config, tiny_learner, tiny_model, train
from echorl_trainer.model import full_weights
from echorl_trainer.parallel import Ranks
from echorl_trainer.publish import Publisher, probe_ids
from echorl_trainer.step import NonFinite
from echorl_trainer.train import Learner
from echorl_trainer.weights import SPOOL_PREFIX, SafetensorsFolder, Spool, WeightStore, disk_store, export_weights

IDENTITY = RunIdentity("test", "uid-of-the-run", 3)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with alone() as ranks:
        yield ranks


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny", tie=request.param)


def publish(learner: Learner, ranks: Ranks, store: WeightStore, version: int, model: Path) -> PolicyAnnouncement:
    ids = probe_ids(tiny_config(model).model, IDENTITY.uid, 8)
    publisher = Publisher(learner.state.policy, ranks, IDENTITY, probe_token_ids=ids, store=store)
    publisher.prepare(version)
    publisher.transfer(full_weights(learner.state.policy))
    announcement = publisher.complete()
    assert announcement is not None
    return announcement


def read_manifest(folder: Path) -> WeightManifest:
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=WeightManifest)


def test_manifest_describes_every_file_and_tensor(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model)
    announcement = publish(learner, ranks, store, 7, model)
    folder = tmp_path / "broadcasts" / "attempt_3" / "v_000007"
    assert announcement.url == (folder / "manifest.json").as_uri()
    assert announcement.digest == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    manifest = read_manifest(folder)
    assert (manifest.run_uid, manifest.attempt, manifest.version) == ("uid-of-the-run", 3, 7)
    for file in manifest.files:
        data = (folder / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert announcement.size_bytes == sum(file.size for file in manifest.files)
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == set(manifest.tensors)
    assert ("lm_head.weight" in tensors) is not learner.state.policy.tied
    for name, tensor in full_weights(learner.state.policy):
        assert torch.equal(tensor, tensors[name])
        assert manifest.tensors[name].shape == list(tensor.shape)
        assert manifest.tensors[name].dtype == "F32"


def test_probe_agrees_with_the_published_weights(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model, steps=1)
    announcement = publish(learner, ranks, store, 1, model)
    published = Path(announcement.url.removeprefix("file://")).parent
    export_weights(published, model, tmp_path / "exported")
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto")
    assert reloaded.dtype is torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "exported").encode("a") == [64]
    probe = announcement.probe
    assert probe is not None
    ids = torch.tensor(probe.token_ids)
    with torch.no_grad():
        expected = reloaded(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    assert torch.allclose(torch.tensor(probe.logprobs), expected, atol=1e-5)


def test_newest_two_versions_stay_and_a_pin_outlives_its_version(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = Spool(IDENTITY.uid, 3, "http://host:1", tmp_path)
    learner = tiny_learner(ranks, model)
    ids = probe_ids(tiny_config(model).model, IDENTITY.uid, 8)
    publisher = Publisher(learner.state.policy, ranks, IDENTITY, probe_token_ids=ids, store=store)
    pinned = None
    for version in range(4):
        publisher.prepare(version)
        assert store.find(3, version, "manifest.json") is None, "nobody sees a version before it is whole"
        publisher.transfer(full_weights(learner.state.policy))
        announcement = publisher.complete()
        assert announcement is not None
        assert announcement.url == f"http://host:1/weights/a3/v{version}/manifest.json"
        pinned = pinned or publisher.pin()
    assert [store.find(3, version, "manifest.json") is not None for version in range(4)] == [False, False, True, True]
    assert store.find(2, 3, "manifest.json") is None, "another attempt's"
    assert pinned is not None
    assert read_manifest(pinned).version == 0
    assert (pinned / "model.safetensors").is_file()
    store.close()
    assert not list(tmp_path.glob(f"{SPOOL_PREFIX}*"))


def test_weights_that_are_not_finite_are_never_published(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model)
    with torch.no_grad():
        next(learner.state.policy.parameters()).fill_(float("nan"))
    with pytest.raises(NonFinite, match="version 5"):
        publish(learner, ranks, store, 5, model)
    assert store.find(3, 5, "manifest.json") is None


def test_publishing_leaves_training_as_it_is(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    quiet, publishing = tiny_learner(ranks, model, steps=2), tiny_learner(ranks, model)
    for step in (1, 2):
        train(publishing, step, step)
        publish(publishing, ranks, store, step, model)
    pairs = zip(quiet.state.policy.parameters(), publishing.state.policy.parameters(), strict=True)
    assert all(torch.equal(a.full_tensor(), b.full_tensor()) for a, b in pairs)  # type: ignore[attr-defined]


def test_large_models_become_several_files_with_an_index(model: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    source = AutoModelForCausalLM.from_pretrained(model)
    writer = SafetensorsFolder(published, torch.bfloat16, file_bytes=20_000)
    for name, tensor in source.state_dict().items():
        writer.add(name, tensor)
    files, tensors = writer.finish()
    assert len(files) > 2
    assert {info.dtype for info in tensors.values()} == {"BF16"}
    assert all((published / file.name).stat().st_size == file.size for file in files)
    manifest = WeightManifest(run_uid="u", attempt=1, version=1, files=files, tensors=tensors)
    (published / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    export_weights(published, model, tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["dtype"] == "bfloat16"
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto")
    for name, tensor in reloaded.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name].to(torch.bfloat16))


def test_probe_is_fixed_by_the_run_and_has_ordinary_tokens_only(model: Path) -> None:
    config = tiny_config(model).model
    ids = probe_ids(config, "run-a", 64)
    assert ids == probe_ids(config, "run-a", 64)
    assert ids != probe_ids(config, "run-b", 64)
    assert all(0 <= one < 256 for one in ids), "256 and above are special tokens and markers"
    assert len(probe_ids(config, "run-a", 10_000)) == config.max_model_len


def test_spool_of_a_dead_process_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    stale = tmp_path / f"{SPOOL_PREFIX}older-abc"
    (stale / "v_000001").mkdir(parents=True)
    living = tmp_path / f"{SPOOL_PREFIX}other-def"
    living.mkdir()
    handle = os.open(living, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    spool = Spool("run", 1, "http://host:1", tmp_path)
    assert not stale.exists()
    assert living.exists()
    os.close(handle)
    spool.close()


def test_only_files_of_a_kept_version_are_found(tmp_path: Path) -> None:
    spool = Spool("run", 1, "http://host:1", tmp_path)
    (spool.start(1) / "a.safetensors").write_bytes(b"x")
    spool.finish(1)
    (tmp_path / "secret").write_bytes(b"x")
    assert spool.find(1, 1, "a.safetensors") is not None
    assert spool.find(1, 1, "../../secret") is None
    assert spool.find(1, 1, "..") is None
    assert spool.find(1, 2, "a.safetensors") is None
    spool.close()
