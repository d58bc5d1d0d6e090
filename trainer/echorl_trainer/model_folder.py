"""The safetensors files of a Hugging Face model folder."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from torch import Tensor


def model_files(model: Path) -> list[Path]:
    """Safetensors files of a model folder: the one that loading takes first, those of its index, or all there are.

    Raises:
        FileNotFoundError: there are none.
    """
    if (whole := model / "model.safetensors").is_file():
        return [whole]
    index = model / "model.safetensors.index.json"
    if index.is_file():
        return [model / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if files := sorted(model.glob("*.safetensors")):
        return files
    raise FileNotFoundError(f"{model}: has no safetensors files; accepted is a model folder")


def tensor_files(model: Path) -> dict[str, Path]:
    """The file that each of a model folder's tensors is in, by its name."""
    found: dict[str, Path] = {}
    for path in model_files(model):
        with safe_open(path, framework="pt") as opened:
            found |= dict.fromkeys(opened.keys(), path)
    return found


def model_shapes(model: Path) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of a model folder's tensors."""
    for file in model_files(model):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
                yield name, opened.get_slice(name).get_shape()


def stored_tensor(path: Path, name: str) -> Tensor:
    """A tensor of a file. The file is opened for it anew, as pages of an open file count as ours."""
    with safe_open(path, framework="pt") as opened:
        found: Tensor = opened.get_tensor(name)
        return found
