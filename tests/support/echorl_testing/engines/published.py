"""Published weights for tests: what a trainer would serve, made from a model folder or from tensors."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
import xxhash
from safetensors.torch import load_file, save_file

from echorl_core.wire.weights import TensorInfo, WeightFile, WeightManifest

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
