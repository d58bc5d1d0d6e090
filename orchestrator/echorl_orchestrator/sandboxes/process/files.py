"""Files of a sandbox's tree, from outside: what is inside may be hostile, so nothing is opened by a plain path."""

import contextlib
import errno
import hashlib
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator

from echorl_orchestrator.sandboxes.process import kernel

_CHUNK_BYTES = 1 << 20


class Tree:
    """A folder as ``/``."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY)

    def open(self, path: str) -> int:
        """A descriptor of a plain file, to read.

        Raises:
            OSError: there is none, or it is something else.
        """
        # Without blocking, or a named pipe would wait here for whoever writes to it.
        opened = kernel.open_inside(self._root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(errno.EINVAL, f"{path}: is no plain file")
        return opened

    @contextlib.contextmanager
    def folder(self, path: str, mode: int = 0o755) -> Iterator[int]:
        """A descriptor of the folder ``path``, made with those above it where they are not there."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        held = os.dup(self._root)
        try:
            for count, part in enumerate(parts, start=1):
                so_far = "/".join(parts[:count])
                try:
                    found = kernel.open_inside(self._root, so_far, os.O_PATH | os.O_DIRECTORY)
                except FileNotFoundError:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, mode, dir_fd=held)
                    found = kernel.open_inside(self._root, so_far, os.O_PATH | os.O_DIRECTORY)
                os.close(held)
                held = found
            yield held
        finally:
            os.close(held)

    def write(self, path: str, source: int, mode: int, sha256: str) -> None:
        """Write what descriptor ``source`` holds as a whole or not at all.

        Raises:
            OSError: there is no room, ``path`` is a folder, or what arrived is not what was sent.
        """
        above, name = posixpath.split(path)
        if name in ("", ".", ".."):
            raise OSError(errno.EISDIR, f"{path}: is a folder")
        with self.folder(above) as folder:
            draft = f".{secrets.token_hex(8)}"
            try:
                with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), "wb") as out:
                    if _copied(source, out.fileno()) != sha256:
                        raise OSError(errno.EIO, f"{path}: what arrived is not what was sent")
                    os.fchmod(out.fileno(), mode)
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a small file."""
        source = os.memfd_create("put")
        try:
            os.write(source, text.encode())
            self.write(path, source, mode, hashlib.sha256(text.encode()).hexdigest())
        finally:
            os.close(source)

    def text(self, path: str) -> str:
        """A small file's text; empty where there is none."""
        try:
            with open(self.open(path), "rb") as file:
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _copied(source: int, target: int) -> str:
    """Copy all of a file that was written from its start; the sha256 of it."""
    digest, at = hashlib.sha256(), 0
    while chunk := os.pread(source, _CHUNK_BYTES, at):
        digest.update(chunk)
        at += len(chunk)
        left = memoryview(chunk)
        while left:
            left = left[os.write(target, left) :]
    return digest.hexdigest()
