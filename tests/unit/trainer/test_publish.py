"""Published versions: what readers see, what stays, what the loop waits for, and what is never published."""

import hashlib
import json
import os
import resource
import shutil
import signal
import threading
from pathlib import Path

import msgspec
import pytest
import torch
import xxhash
from safetensors.torch import load, load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from echorl_core.config import Quantization
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.weights import PolicyAnnouncement, WeightManifest
from echorl_testing.trainer.tiny_learner import tiny_config, tiny_learner, tiny_model, train
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.copier import Copier
from echorl_trainer.health import Watch
from echorl_trainer.host_files import file_layouts
from echorl_trainer.learner import Learner
from echorl_trainer.lora import published_parameters
from echorl_trainer.parallel import Ranks
from echorl_trainer.probe import probe_ids
from echorl_trainer.publish import Publisher
from echorl_trainer.snapshots import Snapshot, Snapshots
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import DiskStore, MemoryStore, WeightStore, complete_model, disk_store

IDENTITY = RunIdentity("test", "uid-of-the-run", 3)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny", tie=request.param)


def publisher_of(
    learner: Learner,
    ranks: Ranks,
    store: WeightStore,
    model: Path,
    *,
    watch: Watch | None = None,
    deadline_s: float = 60,
    deltas: bool = True,
    broadcaster: Broadcaster | None = None,
    engine_quantization: Quantization | None = None,
    compares_beside: bool | None = None,
) -> Publisher:
    return Publisher(
        learner.state.policy,
        ranks,
        IDENTITY,
        probe_token_ids=probe_ids(tiny_config(model).model, IDENTITY.uid, 8),
        store=store,
        watch=watch or Watch(),
        deadline_s=deadline_s,
        deltas=deltas,
        broadcaster=broadcaster,
        engine_quantization=engine_quantization,
        compares_beside=compares_beside,
    )


def publish(learner: Learner, ranks: Ranks, store: WeightStore, version: int, model: Path) -> PolicyAnnouncement:
    return published(publisher_of(learner, ranks, store, model), version)


def published(publisher: Publisher, version: int) -> PolicyAnnouncement:
    publication = publisher.begin(version)
    assert publication is not None
    return publication.outcome.result(60)


def whole_weights(learner: Learner) -> dict[str, torch.Tensor]:
    parameters = published_parameters(learner.state.policy)
    return {name: one.detach().full_tensor() for name, one in parameters.items()}  # type: ignore[attr-defined]


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
        assert file.size == (folder / file.name).stat().st_size
    assert announcement.size_bytes == sum(file.size for file in manifest.files)
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == set(manifest.tensors)
    assert ("lm_head.weight" in tensors) is not learner.state.policy.tied
    for name, tensor in whole_weights(learner).items():
        assert torch.equal(tensor, tensors[name])
        assert manifest.tensors[name].shape == list(tensor.shape)
        assert manifest.tensors[name].dtype == "F32"
        assert manifest.tensors[name].xxh3 == xxhash.xxh3_128_hexdigest(tensor.numpy())


def test_engines_in_fp8_may_be_further_from_the_probe(ranks: Ranks, model: Path) -> None:
    learner, tolerances = tiny_learner(ranks, model), []
    for quantization in (None, "fp8"):
        store = MemoryStore(3, "http://127.0.0.1:9")
        publisher = publisher_of(learner, ranks, store, model, engine_quantization=quantization)
        tolerances.append(published(publisher, 0).probe.tolerance)
    assert tolerances == [1e-3, 2.0]


def test_what_is_broadcast_is_announced_as_such_and_has_no_delta(ranks: Ranks, model: Path) -> None:
    watch = Watch()
    broadcaster = Broadcaster(torch.device("cpu"), watch, attempt=3)
    learner, store = tiny_learner(ranks, model), MemoryStore(3, "http://127.0.0.1:9")
    publisher = publisher_of(learner, ranks, store, model, watch=watch, broadcaster=broadcaster)
    # Of two that are equal the second one would be a delta of no bytes.
    announced = [published(publisher, version) for version in (1, 2)]
    assert [(one.broadcast, one.delta) for one in announced] == [(True, None)] * 2


def test_probe_agrees_with_the_published_weights(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model, steps=1)
    announcement = publish(learner, ranks, store, 1, model)
    folder = Path(announcement.url.removeprefix("file://")).parent
    shutil.copytree(folder, tmp_path / "exported")
    complete_model(
        file_layouts({"any": (1,)}, torch.float32, single_name="model.safetensors"), model, tmp_path / "exported"
    )
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto")
    assert reloaded.dtype is torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "exported").encode("a") == [64]
    probe = announcement.probe
    assert probe is not None
    ids = torch.tensor(probe.token_ids)
    with torch.no_grad():
        expected = reloaded(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    assert torch.allclose(torch.tensor(probe.logprobs), expected, atol=1e-5)


def visible(store: MemoryStore, version: int, *, attempt: int = 3) -> bool:
    with store.reading(attempt, version, "manifest.json") as found:
        return found is not None


def test_newest_two_versions_stay_in_memory(ranks: Ranks, model: Path) -> None:
    store = MemoryStore(3, "http://host:1")
    learner = tiny_learner(ranks, model)
    publisher = publisher_of(learner, ranks, store, model)
    for version in range(4):
        assert not visible(store, version), "nobody sees a version before it is whole"
        announcement = published(publisher, version)
        assert announcement.url == f"http://host:1/weights/a3/v{version}/manifest.json"
        with store.reading(3, version, "manifest.json") as manifest:
            assert isinstance(manifest, bytes)
            assert hashlib.sha256(manifest).hexdigest() == announcement.digest
    assert [visible(store, version) for version in range(4)] == [False, False, True, True]
    assert not visible(store, 3, attempt=2), "another attempt's"
    with store.reading(3, 3, "model.safetensors") as path:
        assert isinstance(path, Path)
        tensors = load(path.read_bytes())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole_weights(learner).items())
    for name in ("other.safetensors", "../model.safetensors", ".."):
        with store.reading(3, 3, name) as found:
            assert found is None


def test_newest_two_versions_stay_on_disk(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    publisher = publisher_of(tiny_learner(ranks, model), ranks, store, model)
    for version in range(4):
        published(publisher, version)
    assert sorted(path.name for path in store.folder(0).parent.iterdir()) == ["v_000002", "v_000003"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_is_killed_while_he_writes_leaves_nothing_to_be_read(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    layouts = file_layouts({"a": (30_000,), "b": (30_000,)}, torch.float32, single_name="x", file_bytes=100_000)
    snapshots = Snapshots(layouts, {}, pinned=False)
    first, second = (snapshots.take(version, timeout_s=1, check=lambda: None) for version in (1, 2))
    store.show(first, b"manifest")
    child = os.fork()
    if child == 0:
        # The kernel kills it in the middle of the first file.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (layouts[0].size - 1,) * 2)
        store.show(second, b"manifest")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("v_")] == ["v_000001"]
    store.show(second, b"manifest")
    assert {path.name: path.stat().st_size for path in store.folder(2).iterdir()} == {
        "manifest.json": 8,
        **{layout.name: layout.size for layout in layouts},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v_000001", "v_000002"], "nothing is left of the other"


@pytest.mark.parametrize("beside", [False, True], ids=["compared by a thread", "compared by a process"])
def test_a_version_that_changed_little_is_published_as_that_too(
    ranks: Ranks,
    model: Path,
    tmp_path: Path,
    beside: bool,
) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model)
    publisher = publisher_of(learner, ranks, store, model, compares_beside=beside)
    parameters = published_parameters(learner.state.policy)
    norm = parameters["model.norm.weight"]
    assert isinstance(norm, torch.Tensor)
    assert published(publisher, 0).delta is None
    with torch.no_grad():
        norm.add_(1)
    announcement = published(publisher, 1)
    manifest = read_manifest(store.folder(1))
    assert manifest.delta is not None
    assert announcement.delta is not None
    assert manifest.delta.base.digest == hashlib.sha256((store.folder(0) / "manifest.json").read_bytes()).hexdigest()
    assert manifest.delta.base.version == announcement.delta.base_version == 0
    assert list(manifest.delta.tensors) == ["model.norm.weight"]
    # All 32 elements, in float32: as gaps and values they would take more.
    assert manifest.delta.size == announcement.delta.size_bytes == 128
    assert (store.folder(1) / "delta.bin").stat().st_size == 128
    assert announcement.delta.changed_ratio == 32 / sum(one.numel() for one in parameters.values())
    assert load_file(store.folder(1) / "model.safetensors").keys() == parameters.keys(), "it is there as a whole, too"
    with torch.no_grad():
        for one in learner.state.policy.parameters():
            one.mul_(3)
    assert published(publisher, 2).delta is None
    assert not (store.folder(2) / "delta.bin").exists()
    never = publisher_of(learner, ranks, store, model, deltas=False)
    assert [published(never, version).delta for version in (3, 4)] == [None, None]


class HeldStore(MemoryStore):
    """A store whose versions become visible one by one, when it is told."""

    def __init__(self) -> None:
        super().__init__(3, "http://host:1")
        self.go_on = threading.Semaphore(0)

    def show(self, snapshot: Snapshot, manifest: bytes) -> None:
        assert self.go_on.acquire(timeout=60)
        super().show(snapshot, manifest)


def test_training_goes_on_while_a_version_is_published(ranks: Ranks, model: Path) -> None:
    store = HeldStore()
    learner = tiny_learner(ranks, model)
    publisher = publisher_of(learner, ranks, store, model)
    before = {name: tensor.clone() for name, tensor in whole_weights(learner).items()}
    store.go_on.release(2)
    for version in (0, 1):
        published(publisher, version)
    pending = publisher.begin(2)
    assert pending is not None
    train(learner, 1, 1)
    assert not pending.outcome.done()
    assert [visible(store, version) for version in (0, 1, 2)] == [False, True, False]
    store.go_on.release()
    assert pending.result().version == 2
    with store.reading(3, 2, "model.safetensors") as path:
        assert isinstance(path, Path)
        tensors = load(path.read_bytes())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before.items())
    assert not all(torch.equal(tensors[name], tensor) for name, tensor in whole_weights(learner).items())


def test_a_gang_with_others_in_lost_pods_places_publishes_where_no_lost_rank_does(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    run, learner = RunDirectory(tmp_path), tiny_learner(ranks, model)
    store = disk_store(run, 3, 2)
    publish(learner, ranks, store, 5, model)
    folder = store.folder(5)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    # Of the rank 0 that was lost.
    for version in (5, 6, 7):
        publish(learner, ranks, disk_store(run, 3), version, model)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [one.name for one in sorted(folder.parent.iterdir())] == ["v_000005_r2", "v_000006", "v_000007"]


def test_the_loop_waits_only_for_memory_that_is_used(ranks: Ranks, model: Path) -> None:
    store = MemoryStore(3, "http://host:1")
    publisher = publisher_of(tiny_learner(ranks, model), ranks, store, model, deadline_s=3.0)
    published(publisher, 0)
    published(publisher, 1)
    with store.reading(3, 0, "model.safetensors") as path:
        assert path is not None
        with pytest.raises(TimeoutError, match=r"policy version 2: no host memory .* version 0 by 1, version 1 by 2"):
            publisher.begin(2)
        assert visible(store, 0)
        assert visible(store, 1)
    published(publisher, 2)
    assert [visible(store, version) for version in range(3)] == [False, True, True]


def test_what_fails_behind_the_loop_is_met_at_the_next_step(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    (tmp_path / "broadcasts").write_text("in the way")
    watch = Watch()
    publisher = publisher_of(
        tiny_learner(ranks, model), ranks, disk_store(RunDirectory(tmp_path), 3), model, watch=watch
    )
    first = publisher.begin(0)
    assert first is not None
    with pytest.raises(NotADirectoryError):
        first.result()
    assert watch.failed.wait(60)
    with pytest.raises(NotADirectoryError):
        publisher.begin(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_never_published(
    ranks: Ranks, model: Path, tmp_path: Path, value: float, dtype: str
) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    learner = tiny_learner(ranks, model)
    learner.state.policy.dtype = getattr(torch, dtype)
    # A token that the probe does not have: its logprobs alone would not tell.
    with torch.no_grad():
        name, poisoned = next(iter(published_parameters(learner.state.policy).items()))
        poisoned[-1, 2] = value
    with pytest.raises(
        NonFinite, match=f"policy version 5: {name}: 1 of {poisoned.numel()} values are NaN or infinite"
    ):
        publish(learner, ranks, store, 5, model)
    assert not store.folder(5).exists()


def test_publishing_leaves_training_as_it_is(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    store = disk_store(RunDirectory(tmp_path), 3)
    quiet, publishing = tiny_learner(ranks, model, steps=2), tiny_learner(ranks, model)
    for step in (1, 2):
        train(publishing, step, step)
        publish(publishing, ranks, store, step, model)
    pairs = zip(quiet.state.policy.parameters(), publishing.state.policy.parameters(), strict=True)
    assert all(torch.equal(a.full_tensor(), b.full_tensor()) for a, b in pairs)  # type: ignore[attr-defined]


def test_large_models_become_several_files_with_an_index(model: Path, tmp_path: Path) -> None:
    source = AutoModelForCausalLM.from_pretrained(model)
    values = load_file(model / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in values.items()}
    layouts = file_layouts(shapes, torch.bfloat16, single_name="model.safetensors", file_bytes=20_000)
    assert len(layouts) > 2
    snapshot = Snapshots(layouts, {}, pinned=False).take(1, timeout_s=1, check=lambda: None)
    bounds = Copier(layouts, torch.device("cpu")).copy(values, snapshot)
    for (low, high), layout in zip(bounds.tolist(), layouts, strict=True):
        held = [values[name].bfloat16() for name in layout.shapes]
        assert (low, high) == (min(one.min() for one in held), max(one.max() for one in held))
    exported = tmp_path / "exported"
    exported.mkdir()
    assert {path.name: path.stat().st_size for path in snapshot.write(exported)} == {
        layout.name: layout.size for layout in layouts
    }
    complete_model(layouts, model, exported)
    assert json.loads((exported / "config.json").read_text())["dtype"] == "bfloat16"
    reloaded = AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
    for name, tensor in reloaded.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name].to(torch.bfloat16))


def test_probe_is_fixed_by_the_run_and_has_ordinary_tokens_only(model: Path) -> None:
    config = tiny_config(model).model
    ids = probe_ids(config, "run-a", 64)
    assert ids == probe_ids(config, "run-a", 64)
    assert ids != probe_ids(config, "run-b", 64)
    assert all(0 <= one < 256 for one in ids), "256 and above are special tokens and markers"
    assert len(probe_ids(config, "run-a", 10_000)) == config.max_model_len
