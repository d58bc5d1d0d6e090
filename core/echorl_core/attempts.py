"""What a run directory says about its run and its attempts: ``run.json`` and ``attempts/N/prepared.json``."""

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

import msgspec

from echorl_core import checkpoints
from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.rundir import RunDirectory, write_file

T = TypeVar("T")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A uid becomes the name of folders."""


class Policy(StrEnum):
    """``spec.resume.policy``: where the first attempt after a start by hand begins."""

    AUTO = "Auto"
    """Begin at the newest committed checkpoint that is whole, else at the start."""
    NEVER = "Never"
    """Begin at the start; committed checkpoints that are there are refused or archived."""
    FROM_STEP = "FromStep"
    """Begin at this step, once: later attempts of the run go on from there as with Auto."""


class OnExisting(StrEnum):
    """``spec.resume.onExisting``: what to do with another run's directory, or with checkpoints under Never."""

    REFUSE = "Refuse"
    ARCHIVE = "Archive"


class Refused(Exception):
    """The attempt must not start; the message says what was found and what would be accepted."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: whose directory this is. Written once."""

    uid: str
    name: str
    created: str
    """When it was written, in ISO 8601 and UTC."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint that counts for an attempt."""

    step: int
    attempt: int
    """The attempt that committed it."""
    sha256: str
    """Checksum of its manifest.json."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is not resumed from."""

    step: int
    reason: str
    damaged: bool = False
    """It was committed and is not whole; else it does not count for this attempt."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """``attempts/N/prepared.json``: what the attempt starts from. Its presence ends prepare for that attempt."""

    run_uid: str
    attempt: int
    policy: Policy
    from_step: int | None = None
    """The step that policy FromStep named."""
    resume_step: int
    """0: from the start."""
    checkpoint: str | None
    """Folder of the checkpoint to resume from, relative to the run directory."""
    committed: list[Sealed]
    """Checkpoints that count, ascending; the last one is ``resume_step``."""
    skipped: list[Skipped]
    removed: list[str]
    """Relative paths, sorted."""
    kept: list[str]
    """Folders of all committed checkpoints, relative."""
    archived: str | None = None
    """Where an older run's files went, relative."""

    def lines(self) -> list[str]:
        """What was done, for people."""
        return [
            *([f"moved the directory's older content to {self.archived}"] if self.archived else []),
            *(f"skipped checkpoint {skipped.step}: {skipped.reason}" for skipped in self.skipped),
            *(f"removed {path}" for path in self.removed),
            f"resuming from step {self.resume_step} ({self.checkpoint})" if self.checkpoint else "starting at step 0",
        ]


def read_run(run: RunDirectory) -> RunRecord | None:
    """Whose directory this is; None if nobody has claimed it.

    Raises:
        Refused: ``run.json`` is unreadable, or its uid could not be the name of a folder.
    """
    try:
        record = msgspec.json.decode(read_capped(run.identity_file, MAX_JSON_BYTES), type=RunRecord)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{run.identity_file}: unreadable: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{run.identity_file}: unreadable: {error}") from error
    if not _UID.fullmatch(record.uid):
        accepted = "letters, digits, '-', '_' and '.', with a letter or digit first"
        raise Refused(f"{run.identity_file}: found uid {record.uid[:80]!r}; accepted: {accepted}")
    return record


def claim_run(run: RunDirectory, name: str, uid: str) -> RunRecord:
    """Write ``run.json`` if there is none, and return what it says.

    Raises:
        Refused: ``run.json`` is unreadable.
    """
    record = read_run(run)
    if record is None:
        record = RunRecord(uid=uid, name=name, created=datetime.now(UTC).isoformat(timespec="seconds"))
        write_file(run.identity_file, msgspec.json.format(msgspec.json.encode(record), indent=2))
    return record


def read_prepared(run: RunDirectory, attempt: int) -> Prepared | None:
    """What prepare decided for an attempt; None if it has not finished."""
    return _read(run, attempt, "prepared.json", Prepared)


def owner_of(run: RunDirectory) -> str:
    """Uid of the run that the directory's content belongs to; "unknown" if nothing says.

    Raises:
        Refused: ``run.json`` is unreadable.
    """
    record = read_run(run)
    committed, _ = checkpoints.committed(run)
    if record:
        return record.uid
    uids = (checkpoint.manifest.run_uid for checkpoint in committed)
    return next((uid for uid in uids if _UID.fullmatch(uid)), "unknown")


def prepared_attempts(run: RunDirectory) -> list[tuple[int, Prepared]]:
    """List the attempts that were prepared, with their number, ascending."""
    attempts = ((number, read_prepared(run, number)) for number in range(1, run.last_attempt() + 1))
    return [(number, prepared) for number, prepared in attempts if prepared is not None]


def as_json(value: object) -> bytes:
    """Indented JSON of a struct or a list of structs."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _read(run: RunDirectory, attempt: int, name: str, kind: type[T]) -> T | None:
    path = run.attempt(attempt) / name
    try:
        return msgspec.json.decode(read_capped(path, MAX_JSON_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path}: unreadable: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{path}: unreadable: {error}") from error
