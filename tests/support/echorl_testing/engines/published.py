"""Published weights for tests: what a trainer would serve, made from a model folder or from tensors."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
import xxhash
from safetensors.torch import load_file, save_file

from echorl_core.deltas import bits, encoded
from echorl_core.wire.weights import (
    DELTA_FILE,
    PolicyId,
    TensorChange,
    TensorInfo,
    WeightDelta,
    WeightFile,
    WeightManifest,
    decode,
)

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def published_tensors(model: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model folder, with the output head spelled out."""
    tensors = load_file(model / "model.safetensors")
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    return tensors


def publish(
    folder: Path, tensors: Mapping[str, torch.Tensor], *, attempt: int, version: int, run_uid: str, files: int = 2
) -> str:
    """Write safetensors files and their manifest; returns the manifest's digest."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    infos: dict[str, TensorInfo] = {}
    listed: list[WeightFile] = []
    for number in range(files):
        name = f"part-{number}.safetensors"
        share = {key: tensors[key].contiguous() for key in names[number::files]}
        save_file(share, folder / name)
        listed.append(WeightFile(name=name, size=(folder / name).stat().st_size))
        infos |= {key: tensor_info(tensor, name) for key, tensor in share.items()}
    return write_manifest(
        folder, WeightManifest(run_uid=run_uid, attempt=attempt, version=version, files=listed, tensors=infos)
    )


def add_delta(folder: Path, base: Path) -> str:
    """Publish what lies in ``folder`` as a delta from ``base``, too, whatever changed; the new manifest's digest."""
    manifest, before = (decode((one / "manifest.json").read_bytes(), WeightManifest) for one in (folder, base))
    digest = hashlib.sha256((base / "manifest.json").read_bytes()).hexdigest()
    data, tensors = b"", dict[str, TensorChange]()
    for file in manifest.files:
        old, new = (load_file(one / file.name) for one in (base, folder))
        for name, tensor in new.items():
            pair = (bits(one.view(-1).view(torch.uint8).numpy(), one.itemsize) for one in (old[name], tensor))
            found = encoded(*pair, most_bytes=1 << 40)
            assert found is not None
            if found[1]:
                part = b"".join(one.tobytes() for one in found[0])
                tensors[name] = TensorChange(offset=len(data), size=len(part), changed=found[1])
                data += part
    (folder / DELTA_FILE).write_bytes(data)
    policy = PolicyId(attempt=before.attempt, version=before.version, digest=digest)
    delta = WeightDelta(base=policy, size=len(data), tensors=tensors)
    return write_manifest(folder, msgspec.structs.replace(manifest, delta=delta))


def tensor_info(tensor: torch.Tensor, file: str) -> TensorInfo:
    """What a manifest says of a tensor."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    shape, dtype = list(tensor.shape), _DTYPES[tensor.dtype]
    return TensorInfo(dtype=dtype, shape=shape, file=file, xxh3=xxhash.xxh3_128_hexdigest(data))


def write_manifest(folder: Path, manifest: WeightManifest) -> str:
    """Write a manifest as it is; returns its digest."""
    data = msgspec.json.encode(manifest)
    (folder / "manifest.json").write_bytes(data)
    return hashlib.sha256(data).hexdigest()
