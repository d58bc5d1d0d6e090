"""What a published set of weights must be before the model is touched: complete, of the right form, unharmed.

A wrong shape ends a vLLM engine for good and a missing tensor keeps its old value with a warning only, so
everything is checked here first, against the safetensors headers of the folder that the engine loaded.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from safetensors import safe_open
from xxhash import xxh3_128_hexdigest

from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from echorl_core.model_folder import ROUTER_BIAS, own_tensors
from echorl_core.wire.weights import WeightManifest

OUTPUT_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_FOLDER = re.compile(r"http://[^\s?#]+/")
_NAMED_IN_MESSAGE = 5
_HASH_THREADS = 8


class WeightsRefusedError(ValueError):
    """The published weights cannot be loaded; the message says what was found and what is accepted."""


@dataclass(frozen=True)
class TensorForm:
    """Shape and safetensors dtype name ("F32", "BF16", ...) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ModelForm:
    """What an engine accepts: the tensors of its model folder, in Hugging Face names."""

    tensors: Mapping[str, TensorForm]
    engine_dtype: str | None = None
    """Safetensors name of the dtype that the engine computes in; accepted next to the folder's own."""
    tied: bool = False
    """Whether the output head shares the embedding; both are published all the same, and must be equal."""
    has_head: bool = True
    """Whether the engine's model has an output head, be it a tied one; Gemma-2's scores by the embedding itself."""
    adapter_config: bytes | None = None
    """The adapter's config, of an engine whose adapter alone is replaced. ``tensors`` are then those of the adapter."""

    @property
    def kind(self) -> str:
        """What is replaced, as a manifest says it."""
        return "full" if self.adapter_config is None else "adapter"


def read_forms(files: Iterable[Path]) -> dict[str, TensorForm]:
    """Names, shapes and dtypes in the headers of safetensors files.

    Raises:
        WeightsRefusedError: a file is not safetensors.
    """
    forms: dict[str, TensorForm] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                    header = file.get_slice(name)
                    forms[name] = TensorForm(tuple(header.get_shape()), header.get_dtype())
        except Exception as error:
            raise WeightsRefusedError(f"{path.name}: not a readable safetensors file: {error}") from error
    return forms


def model_form(folder: Path, *, tied: bool, engine_dtype: str | None = None, has_head: bool = True) -> ModelForm:
    """Read what the model in ``folder`` consists of; the output head is named even where a tied model omits it.

    Raises:
        WeightsRefusedError: no safetensors files, or no embedding to take the output head's shape from.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsRefusedError(
            f"{folder}: has no safetensors files, so published weights cannot be checked against it"
        )
    is_own = own_tensors(folder)
    tensors = {name: form for name, form in read_forms(files).items() if is_own(name)}
    if OUTPUT_HEAD not in tensors:
        embeddings = [name for name in tensors if name.endswith(EMBEDDING)]
        if len(embeddings) != 1:
            raise WeightsRefusedError(f"{folder}: has neither {OUTPUT_HEAD} nor exactly one *{EMBEDDING}")
        tensors[OUTPUT_HEAD] = tensors[embeddings[0]]
    return ModelForm(tensors=tensors, engine_dtype=engine_dtype, tied=tied, has_head=has_head)


def adapter_form(folder: Path) -> ModelForm:
    """What an engine accepts whose adapter lies in ``folder``."""
    return ModelForm(
        tensors=read_forms([folder / ADAPTER_WEIGHTS]), adapter_config=(folder / ADAPTER_CONFIG).read_bytes()
    )


def check_adapter_config(source: Path, expected: ModelForm) -> None:
    """A staged adapter means the same by its tensors as the one that the engine started with.

    Raises:
        WeightsRefusedError: names the first setting that differs.
    """
    if expected.adapter_config is None:
        return
    staged, wanted = json.loads((source / ADAPTER_CONFIG).read_bytes()), json.loads(expected.adapter_config)
    for key, value in wanted.items():
        if staged.get(key) != value:
            raise WeightsRefusedError(f"{ADAPTER_CONFIG}: {key} is {staged.get(key)}, the engine has {value}")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = len(ordered) - _NAMED_IN_MESSAGE
    return ", ".join(ordered[:_NAMED_IN_MESSAGE]) + (f" and {rest} more" if rest > 0 else "")


def check_manifest(manifest: WeightManifest, *, run_uid: str | None, attempt: int, version: int) -> None:
    """The manifest is of this run, attempt and version, and names plain files only, and folders on other hosts."""
    for name, value, wanted in (
        ("run_uid", manifest.run_uid, run_uid if run_uid is not None else manifest.run_uid),
        ("attempt", manifest.attempt, attempt),
        ("version", manifest.version, version),
    ):
        if value != wanted:
            raise WeightsRefusedError(f"weight manifest: {name} is {value!r}, expected {wanted!r}")
    for file in manifest.files:
        if manifest.kind == "adapter" and file.name == ADAPTER_CONFIG:
            continue
        if not _FILE_NAME.fullmatch(file.name):
            raise WeightsRefusedError(
                f"weight manifest: file name {file.name!r}; accepted are plain *.safetensors names"
            )
    parts = [] if manifest.delta is None else manifest.delta.parts
    for folder in [*(one.folder for one in manifest.files), *(part.folder for part in parts)]:
        if folder is not None and not _FOLDER.fullmatch(folder):
            raise WeightsRefusedError(f"weight manifest: folder {folder!r}; accepted is http://HOST:PORT/.../")
    if parts and manifest.delta is not None and sum(one.size for one in parts) != manifest.delta.size:
        raise WeightsRefusedError(f"weight manifest: the delta's parts are not its {manifest.delta.size} bytes")


def check_form(manifest: WeightManifest, expected: ModelForm) -> None:
    """The manifest has exactly the tensors of the model, or of the adapter, in its shapes and in an accepted dtype."""
    if manifest.kind != expected.kind:
        raise WeightsRefusedError(f"weight manifest: kind is {manifest.kind!r}, this engine takes {expected.kind!r}")
    names = sorted(file.name for file in manifest.files)
    if expected.kind == "adapter" and names != [ADAPTER_CONFIG, ADAPTER_WEIGHTS]:
        both = f"{ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
        raise WeightsRefusedError(f"weight manifest: files {', '.join(names)}; accepted are {both}")
    missing = expected.tensors.keys() - manifest.tensors.keys() - ({OUTPUT_HEAD} if expected.tied else set())
    unknown = manifest.tensors.keys() - expected.tensors.keys()
    if missing:
        raise WeightsRefusedError(f"published weights: tensors missing: {_some(missing)}")
    if unknown:
        raise WeightsRefusedError(f"published weights: tensors that the model does not have: {_some(unknown)}")
    if expected.tied and OUTPUT_HEAD in manifest.tensors:
        (embedding,) = (name for name in manifest.tensors if name.endswith(EMBEDDING))
        if manifest.tensors[embedding].xxh3 != manifest.tensors[OUTPUT_HEAD].xxh3:
            raise WeightsRefusedError(f"{OUTPUT_HEAD}: differs from {embedding}, though the model ties them")
    for name, info in manifest.tensors.items():
        wanted = expected.tensors[name]
        if tuple(info.shape) != wanted.shape:
            raise WeightsRefusedError(f"{name}: shape {list(info.shape)}, the model has {list(wanted.shape)}")
        other = "F32" if name.endswith(ROUTER_BIAS) else expected.engine_dtype
        accepted = sorted({wanted.dtype, other or wanted.dtype})
        if info.dtype not in accepted:
            raise WeightsRefusedError(f"{name}: dtype {info.dtype}, accepted: {', '.join(accepted)}")


def open_tensors(folder: Path, manifest: WeightManifest) -> dict[str, torch.Tensor]:
    """Map the manifest's files into host memory: nothing is copied until a tensor is read.

    Raises:
        WeightsRefusedError: a file's header differs from what the manifest says.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in manifest.files:
        if file.name.endswith(".safetensors"):
            tensors.update(open_file(folder / file.name, manifest))
    if tensors.keys() != manifest.tensors.keys():
        raise WeightsRefusedError(f"weight manifest: no file holds {_some(manifest.tensors.keys() - tensors.keys())}")
    return tensors


def open_file(path: Path, manifest: WeightManifest) -> dict[str, torch.Tensor]:
    """Map one of the manifest's safetensors files, of which only header and size need to be there. Raises as above."""
    listed = {
        name: TensorForm(tuple(info.shape), info.dtype)
        for name, info in manifest.tensors.items()
        if info.file == path.name
    }
    forms = read_forms([path])
    if forms != listed:
        differing = [name for name in forms.keys() | listed.keys() if forms.get(name) != listed.get(name)]
        raise WeightsRefusedError(f"{path.name}: header differs from the weight manifest in {_some(differing)}")
    with safe_open(path, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in listed}


def with_head(tensors: Mapping[str, torch.Tensor], expected: ModelForm) -> dict[str, torch.Tensor]:
    """The tensors with the output head that a tied model's publication leaves out: an engine on the CPU has its own.

    Without it where the engine's model has none, and would refuse it.
    """
    if expected.tied and not expected.has_head:
        return {name: tensor for name, tensor in tensors.items() if name != OUTPUT_HEAD}
    embedding = next((tensor for name, tensor in tensors.items() if name.endswith(EMBEDDING)), None)
    head = {OUTPUT_HEAD: embedding} if expected.tied and embedding is not None else {}
    return {**head, **tensors}


def check_digests(tensors: Mapping[str, torch.Tensor], manifest: WeightManifest) -> None:
    """Every tensor's bytes are those that the manifest tells, by their digests; found out in several threads.

    Raises:
        WeightsRefusedError: names the first that is not.
    """
    with ThreadPoolExecutor(min(_HASH_THREADS, os.cpu_count() or 1)) as pool:
        for _ in pool.map(check_digest, tensors, tensors.values(), repeat(manifest)):
            pass


def check_digest(name: str, tensor: torch.Tensor, manifest: WeightManifest) -> None:
    """One tensor's bytes are those that the manifest tells. Raises as above."""
    digest = xxh3_128_hexdigest(tensor.reshape(-1).view(torch.uint8).numpy().data)
    if digest != (told := manifest.tensors[name].xxh3):
        raise WeightsRefusedError(f"{name}: xxh3 is {digest}, the weight manifest says {told}")
