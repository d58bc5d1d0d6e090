"""The file that the trainer's part of ``echorl preflight`` leaves: versions of an adapter, and what each computes."""

from pathlib import Path

import msgspec

from echorl_core.wire.weights import PolicyAnnouncement

FILE = "preflight_step.json"


class PreflightStep(msgspec.Struct, frozen=True, kw_only=True):
    """Versions that were published, in order: 0 as the run starts, 1 after a step, then one for each further swap."""

    gradient_norm: float
    """Norm of the step's gradient before clipping."""
    versions: list[PolicyAnnouncement]
    """The announcements, each with its probe; the first probe is also that of the model alone."""


def read(folder: Path) -> PreflightStep:
    """Read the result that ``write`` left in ``folder``.

    Raises:
        OSError: there is no such file.
        ValueError: it cannot be read.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=PreflightStep)
    except msgspec.DecodeError as error:
        raise ValueError(f"{folder / FILE}: {error}") from error


def write(folder: Path, step: PreflightStep) -> None:
    """Write the result into ``folder``."""
    (folder / FILE).write_bytes(msgspec.json.encode(step))
