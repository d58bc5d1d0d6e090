"""Where the data of a user's run lies."""

import sys
from pathlib import Path

from echorl_orchestrator.failures import BadInputError


def found(path: str, field: str, *, folder: bool = False) -> Path:
    """The file that ``path`` names; with ``folder`` a folder will do too.

    Args:
        path: if relative, below a folder that modules come from, or the working directory.
        field: that says so, for the message.
        folder: whether a folder is accepted.

    Raises:
        BadInputError: there is none; says where it was looked for.
    """
    places = [Path(path)] if Path(path).is_absolute() else [*(Path(entry) / path for entry in sys.path), Path(path)]
    for place in places:
        if place.is_file() or (folder and place.is_dir()):
            return place
    where = "that path" if len(places) == 1 else "spec.code and the working directory"
    what = "a file or folder" if folder else "a file"
    raise BadInputError(f"{field}: found {path!r}, accepted is {what} at {where}")
