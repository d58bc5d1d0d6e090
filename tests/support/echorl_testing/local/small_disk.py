"""A disk of a few pages that a test can fill and empty. Needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Take every byte that is left."""
        with self._ballast.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"\0" * 4096)
                except OSError:
                    return

    def empty(self) -> None:
        """Give back what ``fill`` took."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, *, size_kib: int) -> Iterator[SmallDisk]:
    """A disk of its own under ``folder``; the test is skipped where nothing can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
