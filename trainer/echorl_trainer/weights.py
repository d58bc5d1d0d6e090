"""Published weights: how readers get at versions, and Hugging Face model folders."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from echorl_core.adapters import ADAPTER_CONFIG
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory
from echorl_core.wire.weights import DELTA_FILE
from echorl_trainer.host_files import FileLayout
from echorl_trainer.snapshots import Snapshot

KEPT_VERSIONS = 2
MANIFEST = "manifest.json"
COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja"}


class WeightStore(Protocol):
    """Where versions become visible to their readers."""

    def url(self, version: int) -> str:
        """Address of a version's manifest."""
        ...

    def show(self, snapshot: Snapshot, manifest: bytes) -> None:
        """Make a version visible, whole; the caller uses the snapshot meanwhile.

        Without a manifest: of a rank that has a part of it. Its files can be read; another rank's manifest names them.
        """
        ...


class MemoryStore:
    """Mode ``http``: versions are read where they are. The one before the newest goes when its room is needed."""

    def __init__(self, attempt: int, base_url: str) -> None:
        """``base_url``: ``http://host:port``."""
        self._attempt, self._base_url = attempt, base_url
        self._shown: list[Snapshot] = []

    def url(self, version: int) -> str:
        """Address of a version's manifest."""
        return f"{self._base_url}/weights/a{self._attempt}/v{version}/{MANIFEST}"

    def show(self, snapshot: Snapshot, manifest: bytes) -> None:
        """Make a version visible; the store uses it until the next one comes."""
        before = self._shown[-1:]
        snapshot.use()
        snapshot.show(manifest)
        self._shown = [*before, snapshot]
        for older in before:
            older.release()

    @contextmanager
    def reading(self, attempt: int, version: int, name: str) -> Iterator[Path | bytes | None]:
        """A file of a version, by its path or whole, which stays as it is in the block; None if there is none."""
        with ExitStack() as stack:
            for snapshot in self._shown if attempt == self._attempt else []:
                manifest = stack.enter_context(snapshot.reading(version))
                if manifest is not None:
                    small = {MANIFEST: manifest, **snapshot.small}
                    paths = {file.layout.name: file.path for file in snapshot.files}
                    if snapshot.has_delta:
                        paths[DELTA_FILE] = snapshot.delta_file.path
                    yield small.get(name) or paths.get(name)
                    return
            yield None


class DiskStore:
    """Mode ``disk``: folders of versions, written under temporary names and renamed. The newest stay."""

    def __init__(self, root: Path, *, kept: int = KEPT_VERSIONS, replacements: int = 0) -> None:
        """``replacements``: how often the gang lost a pod, which may still write; its folders have other names."""
        self._root, self._kept = root.absolute(), kept
        self._replacements, self._suffix = replacements, f"_r{replacements}" if replacements else ""

    def folder(self, version: int) -> Path:
        """Where a version lies."""
        return self._root / f"v_{version:06d}{self._suffix}"

    def url(self, version: int) -> str:
        """Address of a version's manifest."""
        return (self.folder(version) / MANIFEST).as_uri()

    def show(self, snapshot: Snapshot, manifest: bytes) -> None:
        """Write a version, and remove all but the newest."""
        target = self.folder(snapshot.version)
        fresh = self._root / f"{TEMPORARY_PREFIX}{target.name}"
        for old in (fresh, target):
            shutil.rmtree(old, ignore_errors=True)
        fresh.mkdir(parents=True)
        snapshot.write(fresh)
        if snapshot.has_delta:
            shutil.copyfile(snapshot.delta_file.path, fresh / DELTA_FILE)
        (fresh / MANIFEST).write_bytes(manifest)
        fresh.rename(target)
        # A lost rank does not know what its gang has written since.
        known = (one for one in self._root.glob("v_*") if int(one.name.partition("_r")[2] or 0) <= self._replacements)
        for old in sorted(known)[: -self._kept]:
            shutil.rmtree(old)


def disk_store(run: RunDirectory, attempt: int, replacements: int = 0) -> DiskStore:
    """Where mode ``disk`` publishes."""
    return DiskStore(run.broadcast(attempt, 0).parent, replacements=replacements)


def write_version(snapshot: Snapshot, model: Path, target: Path) -> list[Path]:
    """Write this rank's part of a version into ``target`` for people; what it wrote.

    All parts together are a Hugging Face model folder, or an adapter's two files.
    """
    written = snapshot.write(target)
    if snapshot.whole and ADAPTER_CONFIG not in snapshot.small:
        written += complete_model(snapshot.whole, model, target)
    return written


def complete_model(layouts: Sequence[FileLayout], model: Path, target: Path) -> list[Path]:
    """Make weights in ``target`` a Hugging Face model folder: an index, the start model's config and tokenizer."""
    written = []
    if len(layouts) > 1:
        index = {
            "metadata": {"total_size": sum(layout.size for layout in layouts)},
            "weight_map": {name: layout.name for layout in layouts for name in layout.shapes},
        }
        written.append(target / "model.safetensors.index.json")
        written[0].write_text(json.dumps(index, indent=2))
    return written + copy_description(model, target, str(layouts[0].dtype).removeprefix("torch."))


def copy_description(model: Path, target: Path, dtype: str) -> list[Path]:
    """Put tokenizer and config of the start model beside weights of ``dtype`` (a name such as float32)."""
    written = {target / "config.json"}
    for source in model.iterdir():
        if source.is_file() and source.suffix in COPIED_SUFFIXES and not source.name.endswith(".index.json"):
            shutil.copyfile(source, target / source.name)
            written.add(target / source.name)
    config = json.loads((model / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2))
    return sorted(written)
