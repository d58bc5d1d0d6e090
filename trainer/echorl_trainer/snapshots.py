"""Policy versions in host memory, byte for byte as readers get them: two snapshots, filled by turns.

    copier --> snapshot --> hashed, served, written by whoever holds it

A snapshot is one or more safetensors files in anonymous memory, which is pinned on CUDA.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from echorl_trainer.comparing import MappedFile, MappedSnapshot
from echorl_trainer.host_files import FileLayout, HostFile, MemoryFile

_LOOK_S = 0.5
"""Between two looks at whether something else has failed, while nothing is free."""


class Snapshot:
    """Room for one version. Whoever uses it says so, and it is not filled again before all have let it go."""

    def __init__(
        self,
        number: int,
        files: Sequence[HostFile],
        small: Mapping[str, bytes],
        changed: threading.Condition,
        whole: Sequence[FileLayout],
    ) -> None:
        self.number = number
        """Its place in ``Snapshots.mapped``."""
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
        self.delta_file = MemoryFile()
        """Room for what the version has that the one before it has not, for readers who have that one."""
        self.has_delta = False
        """Whether that is there. Said before the version is shown."""

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
        self.version, self.users, self._manifest, self.has_delta = version, 1, None, False

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
            Snapshot(number, [HostFile(layout, pinned=pinned) for layout in layouts], small, self._changed, whole)
            for number in range(2)
        ]

    def mapped(self) -> list[MappedSnapshot]:
        """What who compares them needs, here or in another process, while these are there."""
        return [MappedSnapshot([_mapped(file) for file in one.files], one.delta_file.descriptor) for one in self._all]

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


def _mapped(file: HostFile) -> MappedFile:
    layout = file.layout
    return MappedFile(file.descriptor, layout.size, layout.dtype.itemsize, dict(layout.places))
