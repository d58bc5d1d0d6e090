"""A version's files, made from those of the version before and a delta; what comes of it is checked by whoever asks."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from echorl_core.deltas import WIDTHS, MalformedDelta, apply, bits
from echorl_core.wire.weights import DELTA_FILE, WeightDelta, WeightManifest, decode
from echorl_vllm.validation import WeightsRefusedError

MANIFEST = "manifest.json"


class DeltaRefusedError(WeightsRefusedError):
    """The delta does not make the version that it is of; the whole version may be fetched instead."""


def rebuild(base: Path, into: Path, manifest: WeightManifest, delta: WeightDelta) -> None:
    """Make the files of ``manifest`` in ``into``, which has the delta's file.

    Each of ``base``'s files goes when it was copied, so that disk or memory never hold much more than a version.

    Raises:
        DeltaRefusedError: the base has other files or tensors, or the delta is malformed.
        OSError: a file cannot be read or written.
    """
    try:
        before = decode((base / MANIFEST).read_bytes(), WeightManifest)
    except msgspec.DecodeError as error:
        raise DeltaRefusedError(f"{base.name}/{MANIFEST}: {error}") from error
    if _form(before) != _form(manifest):
        raise DeltaRefusedError(f"delta from {delta.base}: that version has other files or tensors")
    if unknown := delta.tensors.keys() - manifest.tensors.keys():
        raise DeltaRefusedError(f"delta from {delta.base}: {min(unknown)} is no tensor of the version")
    data = np.fromfile(into / DELTA_FILE, np.uint8) if delta.size else np.zeros(0, np.uint8)
    for file in manifest.files:
        shutil.copyfile(base / file.name, into / file.name)
        (base / file.name).unlink()
        changed = [name for name in delta.tensors if manifest.tensors[name].file == file.name]
        if not changed:
            continue
        try:
            _change(into / file.name, changed, manifest, delta, data)
        except DeltaRefusedError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise DeltaRefusedError(f"{file.name} of {delta.base} is no such file: {error}") from error


def _change(path: Path, names: list[str], manifest: WeightManifest, delta: WeightDelta, data: Any) -> None:
    whole = np.memmap(path, np.uint8, "r+")
    start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    header = json.loads(whole[8:start].tobytes())
    for name in names:
        change, dtype = delta.tensors[name], manifest.tensors[name].dtype
        begin, end = (start + offset for offset in header[name]["data_offsets"])
        said = data[change.offset : change.offset + change.size]
        if change.offset < 0 or len(said) != change.size:
            raise DeltaRefusedError(f"{name}: the delta's {delta.size} bytes end before its part does")
        if change.changed is None and change.size != end - begin:
            raise DeltaRefusedError(f"{name}: the delta has {change.size} bytes for its {end - begin}")
        try:
            if change.changed is None:
                whole[begin:end] = said
            else:
                apply(said, change.changed, bits(whole[begin:end], WIDTHS[dtype]))
        except MalformedDelta as error:
            raise DeltaRefusedError(f"{name}: {error}") from error


def _form(manifest: WeightManifest) -> object:
    tensors = {name: (one.dtype, one.shape, one.file) for name, one in manifest.tensors.items()}
    # Where they are served is another place for every version.
    return [(one.name, one.size) for one in manifest.files], tensors
