"""Safetensors files in memory that no file system names (``memfd``).

Names and shapes of a policy never change, so a file's header is written once, and a version is a copy into what follows
it.
"""

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from torch import Tensor

from echorl_core.model_folder import ROUTER_BIAS

log = structlog.get_logger()

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
FILE_BYTES = 1 << 30
WEIGHTS = "model.safetensors"
"""Name of a model's only file."""
_ALIGNED = 64


@dataclass(frozen=True)
class FileLayout:
    """One safetensors file: where its tensors lie in it, by name, in order."""

    name: str
    header: bytes
    """With its length in front."""
    places: Mapping[str, tuple[int, int]]
    """First byte and byte after the last, from the file's begin."""
    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    size: int
    """Bytes, header included."""


def file_layouts(
    shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, *, single_name: str, file_bytes: int = FILE_BYTES
) -> list[FileLayout]:
    """Spread tensors over files of about ``file_bytes``, named as Hugging Face names them.

    They are of ``dtype``, but biases of routers, whose files are float32 and the last where ``dtype`` is not.
    """
    groups: list[tuple[torch.dtype, dict[str, tuple[int, ...]]]] = []
    held = 0
    dtypes = {name: torch.float32 if name.endswith(ROUTER_BIAS) else dtype for name in shapes}
    for name in sorted(shapes, key=lambda one: dtypes[one] != dtype):
        size = _bytes_of(shapes[name], dtypes[name])
        if not groups or held + size > file_bytes or groups[-1][0] != dtypes[name]:
            groups.append((dtypes[name], {}))
            held = 0
        groups[-1][1][name] = tuple(shapes[name])
        held += size
    count = len(groups)
    return [
        _layout(single_name if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors", group, own)
        for number, (own, group) in enumerate(groups, start=1)
    ]


def _layout(name: str, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> FileLayout:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for tensor, shape in shapes.items():
        begin, end = end, end + _bytes_of(shape, dtype)
        offsets[tensor] = begin, end
        described[tensor] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    header = len(text).to_bytes(8, "little") + text
    places = {tensor: (len(header) + begin, len(header) + end) for tensor, (begin, end) in offsets.items()}
    return FileLayout(name, header, places, dict(shapes), dtype, len(header) + end)


def _bytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    return int(torch.Size(shape).numel()) * dtype.itemsize


class MemoryFile:
    """Memory that only this process's ``path`` names, for as long as this object lives."""

    def __init__(self) -> None:
        self._handle = os.memfd_create("echorl-weights")

    @property
    def path(self) -> Path:
        """To be opened."""
        return Path(f"/proc/self/fd/{self._handle}")

    @property
    def descriptor(self) -> int:
        """To be inherited, or mapped."""
        return self._handle

    def __del__(self) -> None:
        os.close(self._handle)


class HostFile(MemoryFile):
    """A file of a snapshot."""

    def __init__(self, layout: FileLayout, *, pinned: bool) -> None:
        super().__init__()
        self.layout = layout
        os.ftruncate(self._handle, layout.size)
        self._map = mmap.mmap(self._handle, layout.size)
        self._map[: len(layout.header)] = layout.header
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        if pinned:
            pin(whole)
        self.data = whole[len(layout.header) :].view(layout.dtype)
        """All elements of all tensors, in order."""

    def tensors(self) -> dict[str, Tensor]:
        """Views of the data, by name."""
        return dict(zip(self.layout.shapes, views(self.data, self.layout), strict=True))

    def view(self, first: int = 0, after: int | None = None) -> memoryview:
        """Some of the file's bytes."""
        return memoryview(self._map)[first:after]


def views(flat: Tensor, layout: FileLayout) -> list[Tensor]:
    """The tensors of a file in its elements, in order."""
    sizes = [torch.Size(shape).numel() for shape in layout.shapes.values()]
    return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), layout.shapes.values(), strict=True)]


def pin(memory: Tensor) -> None:
    """Let a GPU copy to and from ``memory`` by itself; where the system refuses that, copies are slower."""
    # torch's own pinned memory comes in powers of two: up to twice of what is needed.
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
    if code != 0:
        log.warning("host memory is not pinned, copies will be slower", cuda_error=code)
