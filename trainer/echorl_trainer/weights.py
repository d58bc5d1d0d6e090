"""Published weights on a host's disk: folders of versions, safetensors files, a Hugging Face model folder of them.

A folder is written under a temporary name and renamed, so a reader finds a version whole or not at all.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog
import torch
from safetensors.torch import save

from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, config_json
from echorl_core.config import LoraConfig
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory
from echorl_core.wire.weights import TensorInfo, WeightFile, WeightManifest

log = structlog.get_logger()

KEPT_VERSIONS = 2
FILE_BYTES = 1 << 30
MANIFEST = "manifest.json"
COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja"}
SPOOL_PREFIX = "echorl-weights-"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class WeightStore:
    """Folders of published versions of one attempt, on one host."""

    def __init__(self, root: Path, attempt: int, base_url: str, *, kept: int = KEPT_VERSIONS) -> None:
        """``root`` holds one folder a version; ``base_url`` is ``http://host:port``, or ``root`` as a file URL."""
        self._kept = kept
        self._root = root
        self._attempt = attempt
        self._base_url = base_url

    def folder(self, version: int) -> Path:
        """Where a version lies."""
        return self._root / f"v_{version:06d}"

    def url(self, version: int) -> str:
        """Address of a version's manifest."""
        if self._base_url.startswith("file:"):
            return f"{self._base_url}/{self.folder(version).name}/{MANIFEST}"
        return f"{self._base_url}/weights/a{self._attempt}/v{version}/{MANIFEST}"

    def find(self, attempt: int, version: int, name: str) -> Path | None:
        """A file of a kept version; None for anything else."""
        path = self.folder(version) / name
        return path if attempt == self._attempt and "/" not in name and path.is_file() else None

    def start(self, version: int) -> Path:
        """An empty folder to write a version into."""
        folder = self._root / f"{TEMPORARY_PREFIX}{self.folder(version).name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish(self, version: int) -> None:
        """Make what was written since ``start`` visible, and remove all but the newest versions."""
        target = self.folder(version)
        shutil.rmtree(target, ignore_errors=True)
        (self._root / f"{TEMPORARY_PREFIX}{target.name}").rename(target)
        for old in sorted(self._root.glob("v_*"))[: -self._kept]:
            shutil.rmtree(old)

    def pin(self, version: int, name: str) -> Path:
        """A folder of hard links to a version's files, which outlives the version; the caller removes it."""
        pinned = self._root / f"{TEMPORARY_PREFIX}{name}"
        shutil.rmtree(pinned, ignore_errors=True)
        pinned.mkdir()
        for file in self.folder(version).iterdir():
            os.link(file, pinned / file.name)
        return pinned


class Spool(WeightStore):
    """A folder of this process for mode ``http``, removed at exit, or by the next start on the same host."""

    def __init__(self, run_uid: str, attempt: int, base_url: str, parent: Path | None = None) -> None:
        """``parent``: the host's folder for temporary files unless given."""
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        # Anyone may make files in a temporary folder, links to our own as well.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(parent / f"echorl-spools-{os.getuid()}.lock", flags, 0o600)) as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            remove_stale_spools(parent)
            root = Path(tempfile.mkdtemp(prefix=f"{SPOOL_PREFIX}{run_uid[:8]}-", dir=parent))
            # This lock says that the spool's process lives; it ends with the process, however that ends.
            self._lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        super().__init__(root, attempt, base_url)

    def close(self) -> None:
        """Remove the spool."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)


def remove_stale_spools(parent: Path) -> None:
    """Remove this user's spools whose process is gone: nobody holds their lock."""
    for folder in parent.glob(f"{SPOOL_PREFIX}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_uid != os.getuid():
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            log.info("removing the weights spool of a process that is gone", folder=str(folder))
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def disk_store(run: RunDirectory, attempt: int) -> WeightStore:
    """Where mode ``disk`` publishes."""
    root = run.broadcast(attempt, 0).parent.absolute()
    return WeightStore(root, attempt, root.as_uri())


class SafetensorsFolder:
    """Writes tensors as Hugging Face named safetensors files of about ``file_bytes`` each."""

    _single_name = "model.safetensors"

    def __init__(self, folder: Path, dtype: torch.dtype, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._dtype = dtype
        self._file_bytes = file_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._written: list[tuple[int, str, list[tuple[str, list[int]]]]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take one CPU tensor of any float dtype and shape; it may be written later, so it must not change."""
        tensor = tensor.detach().to(self._dtype).contiguous()
        size = tensor.numel() * tensor.element_size()
        if self._held and self._held_bytes + size > self._file_bytes:
            self._write()
        self._held[name] = tensor
        self._held_bytes += size

    def finish(self) -> tuple[list[WeightFile], dict[str, TensorInfo]]:
        """Write the rest; files in order, and every tensor by name."""
        if self._held:
            self._write()
        count = len(self._written)
        files, tensors = [], {}
        for number, (size, sha256, contents) in enumerate(self._written, start=1):
            name = self._single_name if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self._folder / name)
            files.append(WeightFile(name=name, size=size, sha256=sha256))
            for tensor, shape in contents:
                tensors[tensor] = TensorInfo(dtype=DTYPES[self._dtype], shape=shape, file=name)
        return files, tensors

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}"

    def _write(self) -> None:
        data = save(self._held, metadata={"format": "pt"})
        contents = [(name, list(tensor.shape)) for name, tensor in self._held.items()]
        self._held, self._held_bytes = {}, 0
        self._part(len(self._written) + 1).write_bytes(data)
        self._written.append((len(data), hashlib.sha256(data).hexdigest(), contents))


class AdapterFolder(SafetensorsFolder):
    """Writes an adapter in PEFT's format: its config, and one safetensors file whatever its size."""

    _single_name = ADAPTER_WEIGHTS

    def __init__(self, folder: Path, dtype: torch.dtype, config: LoraConfig) -> None:
        super().__init__(folder, dtype, file_bytes=sys.maxsize)
        self._config = config_json(config)
        (folder / ADAPTER_CONFIG).write_bytes(self._config)

    def finish(self) -> tuple[list[WeightFile], dict[str, TensorInfo]]:
        """See ``SafetensorsFolder``; the config is the last file."""
        files, tensors = super().finish()
        sha256 = hashlib.sha256(self._config).hexdigest()
        return [*files, WeightFile(name=ADAPTER_CONFIG, size=len(self._config), sha256=sha256)], tensors


def export_adapter(published: Path, target: Path) -> None:
    """Make an adapter's folder of a published version; files are linked where the file system allows it."""
    target.mkdir(parents=True, exist_ok=True)
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        _link(published / name, target / name)


def export_weights(published: Path, model: Path, target: Path) -> None:
    """Make a Hugging Face model folder of a published version: its files, and the start model's config and tokenizer.

    Files are linked where the file system allows it: nobody changes a published file.
    """
    manifest = msgspec.json.decode((published / MANIFEST).read_bytes(), type=WeightManifest)
    target.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        _link(published / file.name, target / file.name)
    if len(manifest.files) > 1:
        total = sum(file.size for file in manifest.files)
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: info.file for name, info in manifest.tensors.items()},
        }
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    dtypes = {info.dtype for info in manifest.tensors.values()}
    names = {str(dtype).removeprefix("torch.") for dtype, code in DTYPES.items() if code in dtypes}
    copy_description(model, target, names.pop())


def copy_description(model: Path, target: Path, dtype: str) -> None:
    """Put tokenizer and config of the start model beside weights of ``dtype`` (a name such as float32)."""
    for source in model.iterdir():
        if source.is_file() and source.suffix in COPIED_SUFFIXES and not source.name.endswith(".index.json"):
            shutil.copyfile(source, target / source.name)
    config = json.loads((model / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2))


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
