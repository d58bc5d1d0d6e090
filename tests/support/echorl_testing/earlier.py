"""An earlier state of the project, out of its own history: what an upgrade begins from."""

import subprocess
from pathlib import Path

EARLIER = "21d2a2b8c0d5f2b58e92df02f6ddb1e8e9c34f38"
"""The last state before sandboxes were kept warm, and weights published as what they changed: configs, the CRD, the
broker's rights and the wire have changed since. After a release it is the commit of the one before."""
_REPOSITORY = Path(__file__).parents[3]
_TIMEOUT_S = 120.0


class NoHistory(Exception):
    """The commit is not there, as in a shallow clone or in an archive; says why."""


def earlier(folder: Path, *paths: str) -> Path:
    """Write these folders and files of the earlier state below ``folder``, which must not exist; returns it.

    Raises:
        NoHistory: there is none to take them from.
    """
    archive = ["git", "archive", "--format=tar", EARLIER, "--", *paths]
    made = subprocess.run(archive, cwd=_REPOSITORY, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if made.returncode:
        raise NoHistory(f"no commit {EARLIER[:8]}: {made.stderr.decode(errors='replace').strip()}")
    folder.mkdir(parents=True)
    subprocess.run(["tar", "--extract", "--directory", folder], input=made.stdout, timeout=_TIMEOUT_S, check=True)
    return folder
