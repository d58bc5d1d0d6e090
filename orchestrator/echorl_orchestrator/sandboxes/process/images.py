"""Trees that sandboxes are made over: folders and archives, copied once into a cache that nobody else writes to.

Nothing here is trusted: an archive is unpacked by a process whose whole world is the new tree; of a folder only plain
files, folders and links are taken.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLoss
from echorl_orchestrator.sandboxes.process.programs import OWN_ENVIRONMENT, own_program

HOST = "host"
"""The image that is this machine's own programs."""
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/mime.types", "/etc/ssl/certs"),
)
"""Of the machine's settings only what programs need to run."""
_TOLD_CHARACTERS = 500
_UNPACK_S = 1800.0
"""Who else wants the same image waits for whoever unpacks it."""

_fingerprints: dict[tuple[str, ...], str] = {}


def host_tree() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What of this machine is shown read-only, as (source, path), and which links there are, as (path, target)."""
    links = [(path, os.readlink(path)) for path in _PROGRAMS if os.path.islink(path)]
    shown = [(path, path) for path in _PROGRAMS if os.path.isdir(path) and not os.path.islink(path)]
    return shown + [(os.path.realpath(path), path) for path in _SETTINGS if os.path.exists(path)], links


class Images:
    """The cache below ``folder``, for trees that belong to ``owner`` (None: to whoever runs this)."""

    def __init__(self, folder: Path, owner: int | None, *, unpack_s: float = _UNPACK_S) -> None:
        """``unpack_s``: within which an archive must be unpacked."""
        self._folder = folder
        self._owner = owner
        self._unpack_s = unpack_s
        self._folder.mkdir(mode=0o711, exist_ok=True)

    def tree(self, image: str) -> Path:
        """The folder of ``image``; made at first, which may take as long as unpacking does.

        Raises:
            SandboxError: it is not there, or cannot be read.
        """
        path = Path(image)
        if not path.is_absolute():
            raise SandboxError(
                SandboxLoss.IMAGE,
                f"image: found {image!r}, accepted are {HOST!r} and the absolute path of a folder or tar archive",
            )
        try:
            kept = self._folder / _fingerprint(path)
            with self._alone(kept.name):
                if not kept.exists():
                    self._make(path, kept)
        except OSError as error:
            raise SandboxError(SandboxLoss.IMAGE, f"image: {image} cannot be read: {error}") from error
        return kept

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self._folder / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make(self, source: Path, kept: Path) -> None:
        draft = self._folder / f".{kept.name}.draft"
        # Whoever held the lock before and made this one is dead.
        _remove(draft)
        try:
            if source.is_dir():
                shutil.copytree(source, draft, symlinks=True, ignore=_special)
                self._give(draft)
            else:
                draft.mkdir(mode=0o755)
                self._give(draft)
                self._unpack(source, draft)
            os.rename(draft, kept)
        except shutil.Error as error:
            raise OSError(str(error)[:_TOLD_CHARACTERS]) from error
        finally:
            _remove(draft)

    def _give(self, tree: Path) -> None:
        if self._owner is None:
            return
        for folder, folders, files in os.walk(tree):
            for name in (".", *folders, *files):
                os.chown(os.path.join(folder, name), self._owner, self._owner, follow_symlinks=False)

    def _unpack(self, archive: Path, tree: Path) -> None:
        command = own_program("unpack", "" if self._owner is None else str(self._owner))
        with archive.open("rb") as file:
            try:
                done = subprocess.run(
                    command,
                    cwd=tree,
                    env=OWN_ENVIRONMENT,
                    stdin=file,
                    capture_output=True,
                    timeout=self._unpack_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise OSError(f"it was not unpacked after {self._unpack_s:g} s") from None
        if done.returncode != 0:
            raise OSError(done.stderr.decode(errors="replace").strip()[-_TOLD_CHARACTERS:])


def _special(folder: str, names: list[str]) -> list[str]:
    """Devices, sockets and pipes, which no image has."""
    kinds = (stat.S_ISDIR, stat.S_ISREG, stat.S_ISLNK)
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if not any(is_kind(mode) for is_kind in kinds)]


def _remove(tree: Path) -> None:
    if not tree.exists():
        return
    for folder, _, _ in os.walk(tree):
        os.chmod(folder, 0o700)
    shutil.rmtree(tree)


def _fingerprint(path: Path) -> str:
    """A name for what is there now, found once a process: an archive's hash; a folder's, of names, sizes and times."""
    found = path.stat()
    seen = (str(path), str(found.st_size), str(found.st_mtime_ns), str(found.st_ino))
    if seen not in _fingerprints:
        _fingerprints[seen] = _of_folder(path) if path.is_dir() else _of_file(path)
    return _fingerprints[seen]


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_folder(path: Path) -> str:
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in (".", *sorted((*folders, *files))):
            where = os.path.join(folder, name)
            found = os.lstat(where)
            kept = (os.path.relpath(where, path), found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino)
            digest.update(repr(kept).encode())
    return digest.hexdigest()
