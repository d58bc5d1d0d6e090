"""Files and folders that a user asks a command to write: nothing is replaced but a plain file."""

import stat
from collections.abc import Iterable
from pathlib import Path

from echorl_core.rundir import write_file

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_FILE = "a new file, or a plain file to replace"
_FOLDER = "a folder, or the name of a new one"


class OutputRefused(Exception):
    """An output that must not or cannot be written; its text is the whole line for the user."""


def _refused(option: str, found: str, accepted: str) -> OutputRefused:
    return OutputRefused(f"{option}: found {found}; accepted: {accepted}")


def _cannot(path: Path, option: str, error: OSError, accepted: str) -> OutputRefused:
    return _refused(option, f"{path}: {error.strerror or error}", accepted)


def check_output_file(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a path where something else than a plain file is, or one of ``inputs``; nothing there is fine.

    A link is refused also where it leads to a plain file or to nothing: whoever made it decides what is replaced.

    Args:
        path: what the user named; the empty text is the folder ``.``.
        option: how the user named it, such as ``--out``.
        inputs: files that the command reads.

    Raises:
        OutputRefused: with the line for the user.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot(path, option, error, "a file that can be written") from None
    if not stat.S_ISREG(mode):
        raise _refused(option, f"{_KINDS.get(stat.S_IFMT(mode), 'no plain file')}, {path}", _FILE)
    for source in inputs:
        if source.exists() and path.samefile(source):
            raise _refused(option, f"{path}, which the command reads", "another file")


def check_output_folder(path: Path, option: str) -> None:
    """Refuse a path where something else than a folder, or a link to one, is; nothing there is fine.

    Args:
        path: what the user named.
        option: how the user named it, such as ``--out``.

    Raises:
        OutputRefused: with the line for the user.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise _refused(option, f"a link to nothing, {path}", _FOLDER) from None
        return
    except OSError as error:
        raise _cannot(path, option, error, "a folder that can be written") from None
    if not stat.S_ISDIR(mode):
        raise _refused(option, f"{_KINDS.get(stat.S_IFMT(mode), 'a file')}, {path}", _FOLDER)


def write_output(path: Path, data: bytes, option: str) -> None:
    """Write a file whole or not at all, where ``check_output_file`` has nothing to say; makes missing folders.

    Args:
        path: what the user named.
        data: the file's content.
        option: how the user named it, such as ``--out``.

    Raises:
        OutputRefused: with the line for the user, also where the system refuses to write.
    """
    check_output_file(path, option)
    try:
        write_file(path, data)
    except OSError as error:
        raise _cannot(path, option, error, "a file that can be written") from None
