"""Policy versions in host memory, byte for byte as readers get them: two snapshots, filled by turns.

    parameters --pack--> device --side stream--> snapshot --> hashed, served, written by whoever holds it

A snapshot is one or more safetensors files in anonymous memory (``memfd``): the header is written once, since names and
shapes never change, and a version is a copy into what follows it. On CUDA the memory is pinned, the copy runs beside
the next step, and what it reads is a packed copy that no optimizer touches.
"""

import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from echorl_core.deltas import Bits, bits
from echorl_core.model_folder import ROUTER_BIAS
from echorl_trainer.shards import Portion

log = structlog.get_logger()

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
FILE_BYTES = 1 << 30
WEIGHTS = "model.safetensors"
"""Name of a model's only file."""
_ALIGNED = 64
_LOOK_S = 0.5
"""Between two looks at whether something else has failed, while nothing is free."""
_IN_FLIGHT = 2
"""Packed files on the device at once, beyond which the loop waits for the copy of the first."""


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
        return dict(zip(self.layout.shapes, _views(self.data, self.layout), strict=True))

    def bits(self) -> dict[str, Bits]:
        """The elements of every tensor as unsigned integers, by name; views."""
        width = self.layout.dtype.itemsize
        return {name: bits(self.view(*place), width) for name, place in self.layout.places.items()}

    def view(self, first: int = 0, after: int | None = None) -> memoryview:
        """Some of the file's bytes."""
        return memoryview(self._map)[first:after]


def _views(flat: Tensor, layout: FileLayout) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in layout.shapes.values()]
    return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), layout.shapes.values(), strict=True)]


def pin(memory: Tensor) -> None:
    """Let a GPU copy to and from ``memory`` by itself; where the system refuses that, copies are slower."""
    # torch's own pinned memory comes in powers of two: up to twice of what is needed.
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
    if code != 0:
        log.warning("host memory is not pinned, copies will be slower", cuda_error=code)


class Snapshot:
    """Room for one version. Whoever uses it says so, and it is not filled again before all have let it go."""

    def __init__(
        self,
        files: Sequence[HostFile],
        small: Mapping[str, bytes],
        changed: threading.Condition,
        whole: Sequence[FileLayout],
    ) -> None:
        self.files = files
        """Of this rank."""
        self.small = small
        """Other files of every version, by name."""
        self.whole = whole
        """All files of a version, where this rank completes folders with them; empty: another rank does."""
        self.version = -1
        self.users = 0
        self._changed = changed
        self._manifest: bytes | None = None
        self.delta: MemoryFile | None = None
        """What the version has that the one before it has not, for readers who have that one."""

    def use(self) -> None:
        """One user more: beside one that there is, or in the thread that takes snapshots."""
        with self._changed:
            self.users += 1

    def release(self) -> None:
        """One user less."""
        with self._changed:
            self.users -= 1
            self._changed.notify_all()

    def begin(self, version: int) -> None:
        """The caller, who holds the lock of all snapshots, is the first user of ``version``; readers see none yet."""
        self.version, self.users, self._manifest, self.delta = version, 1, None, None

    def show(self, manifest: bytes) -> None:
        """Let readers see the version."""
        with self._changed:
            self._manifest = manifest

    @contextmanager
    def reading(self, version: int) -> Iterator[bytes | None]:
        """The manifest of ``version``, whose bytes stay as they are in the block; None if it cannot be read here."""
        with self._changed:
            manifest = self._manifest if self.version == version else None
            self.users += manifest is not None
        try:
            yield manifest
        finally:
            if manifest is not None:
                self.release()

    def write(self, folder: Path) -> list[Path]:
        """Write the version's files, without a manifest, into ``folder``."""
        written = []
        for file in self.files:
            (folder / file.layout.name).write_bytes(file.view())
            written.append(folder / file.layout.name)
        for name, data in self.small.items():
            (folder / name).write_bytes(data)
            written.append(folder / name)
        return written


class Snapshots:
    """The snapshots of a process: two, so that one is filled while another is read."""

    def __init__(
        self,
        layouts: Sequence[FileLayout],
        small: Mapping[str, bytes],
        *,
        pinned: bool,
        whole: Sequence[FileLayout] | None = None,
    ) -> None:
        """``layouts``: of this rank's files. ``whole``: see ``Snapshot``; None: these are all."""
        self._changed = threading.Condition()
        whole = layouts if whole is None else whole
        self._all = [
            Snapshot([HostFile(layout, pinned=pinned) for layout in layouts], small, self._changed, whole)
            for _ in range(2)
        ]

    def take(self, version: int, *, timeout_s: float, check: Callable[[], None]) -> Snapshot:
        """The one with the older version, for ``version``, once nobody uses it; the caller is its first user.

        ``check`` is called now and then, and ends the wait by raising.

        Raises:
            TimeoutError: both were used for longer than ``timeout_s``.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while not (free := [one for one in self._all if one.users == 0]):
                check()
                if time.monotonic() > until:
                    held = ", ".join(f"version {one.version} by {one.users}" for one in self._all)
                    raise TimeoutError(f"policy version {version}: no host memory for it in {timeout_s:g} s: {held}")
                self._changed.wait(_LOOK_S)
            oldest = min(free, key=lambda one: one.version)
            oldest.begin(version)
            return oldest


@dataclass(frozen=True)
class Arrival:
    """What is on its way to host memory."""

    values: Sequence[Tensor]
    done: torch.cuda.Event | None
    """None: it is there."""

    def wait(self) -> Sequence[Tensor]:
        """The values, once they and all that was copied before them are there."""
        if self.done is not None:
            self.done.synchronize()
        return self.values


class Copier:
    """Copies a policy's parameters into snapshots; every rank holds one."""

    def __init__(self, layouts: Sequence[FileLayout], device: torch.device) -> None:
        self._layouts = layouts
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def copy(self, parameters: Mapping[str, Tensor | Portion], snapshot: Snapshot | None) -> Tensor:
        """Walk all parameters, named as in the layouts; collective, since each is gathered.

        ``snapshot``: has this rank's files, all or some of those of the layouts; None: it has none.

        When it returns the parameters may change; ``arrival`` says when the snapshot has them.

        Returns:
            Least and largest value of each of these files, float32 [files, 2] on the device, NaN where one is.
        """
        bounds: list[Tensor] = []
        under_way: list[torch.cuda.Event] = []
        wanted = ((parameters[name], layout.dtype) for layout in self._layouts for name in layout.shapes)
        everything = _all_gathered(wanted)
        own = {} if snapshot is None else {file.layout.name: file.data for file in snapshot.files}
        for layout in self._layouts:
            whole = islice(everything, len(layout.shapes))
            data = own.get(layout.name)
            if data is None:
                for _ in whole:
                    pass
                continue
            if self._side is None:
                _fill(_views(data, layout), whole)
                bounds.append(_bounds(data))
                continue
            if len(under_way) >= _IN_FLIGHT:
                under_way[-_IN_FLIGHT].synchronize()
            packed = torch.empty(len(data), dtype=layout.dtype, device=self._side.device)
            _fill(_views(packed, layout), whole)
            bounds.append(_bounds(packed))
            self._follow()
            with torch.cuda.stream(self._side):
                data.copy_(packed, non_blocking=True)
                packed.record_stream(self._side)
                under_way.append(self._side.record_event())
        return torch.stack(bounds) if bounds else torch.empty(0, 2)

    def arrival(self, *values: Tensor) -> Arrival:
        """Bring a few values to the host, after all that ``copy`` sent there."""
        if self._side is None:
            return Arrival(values, None)
        self._follow()
        with torch.cuda.stream(self._side):
            hosts = [torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in values]
            for host, value in zip(hosts, values, strict=True):
                host.copy_(value, non_blocking=True)
                value.record_stream(self._side)
            return Arrival(hosts, self._side.record_event())

    def _follow(self) -> None:
        assert self._side is not None  # noqa: S101 - asked on CUDA alone
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))


def gathered(parameter: Tensor | Portion, dtype: torch.dtype) -> Tensor:
    """The whole of a parameter on its device; collective, and in ``dtype`` if ranks exchange anything for it."""
    if isinstance(parameter, Portion):
        return parameter.of(gathered(parameter.stack, dtype))
    if not isinstance(parameter, DTensor):
        return parameter
    if parameter.device_mesh.size() == 1:
        return parameter.to_local()
    local = parameter.to(dtype)
    whole: Tensor = local.full_tensor() if isinstance(local, DTensor) else local
    return whole


def _all_gathered(wanted: Iterable[tuple[Tensor | Portion, torch.dtype]]) -> Iterator[Tensor]:
    """The whole of each; a stack is gathered once for portions of it that stand together."""
    stack, whole = None, torch.empty(0)
    for one, dtype in wanted:
        if not isinstance(one, Portion):
            stack, whole = None, torch.empty(0)
            yield gathered(one, dtype)
            continue
        if stack is not one.stack:
            stack, whole = one.stack, gathered(one.stack, dtype)
        yield one.of(whole)


def _fill(targets: Sequence[Tensor], whole: Iterator[Tensor]) -> None:
    for target, tensor in zip(targets, whole, strict=True):
        target.copy_(tensor)


def _bounds(data: Tensor) -> Tensor:
    return torch.stack(torch.aminmax(data)).float()
