"""Folders that a user names on the command line."""

from pathlib import Path
from typing import Annotated

import typer


def named_path(text: str) -> Path:
    """A path that is not the empty text, which a script's variable may be that is not set.

    Raises:
        typer.BadParameter: it is.
    """
    if not text or "\0" in text:
        raise typer.BadParameter("found an empty name or one with a NUL; accepted: a path")
    return Path(text)


def run_folder(path: Path) -> Path:
    """The path itself, which is a folder's.

    Raises:
        typer.BadParameter: it is not.
    """
    try:
        if path.is_dir():
            return path
        obstacle = "something that is no folder" if path.exists() or path.is_symlink() else "nothing"
    except OSError as error:
        obstacle = error.strerror or str(error)
    raise typer.BadParameter(f"found {obstacle} at {str(path)[:200]!r}; accepted: the directory of a run")


RunFolder = Annotated[
    Path, typer.Argument(parser=named_path, callback=run_folder, metavar="RUN_DIR", help="Directory of a run.")
]
