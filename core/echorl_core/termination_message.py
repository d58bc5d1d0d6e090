"""A role's termination message: why its process ended, as JSON in the file that the kubelet reads.

    role --write()--> $ECHORL_TERMINATION_LOG --kubelet--> pod status --read()--> operator

At most 4 KiB, which is what the kubelet takes. Values of variables that hold secrets never stand in it.
"""

import os
import re
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from echorl_core.names import ENV_TERMINATION_LOG, ExitCode

log = structlog.get_logger()

LARGEST = 4096
"""Bytes that the kubelet keeps of a termination message."""
KUBELET_FILE = "/dev/termination-log"

_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 1500, 1500
_CUT = "..."
_HIDDEN = "***"
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)$", re.IGNORECASE)
_SECRET_FORM = re.compile(r"\bhf_\w{16,}|(?<=://)[^/\s@]+(?=@)|(?<=Bearer )\S+")
_SHORTEST_SECRET = 4

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A reader keeps it where no greater number fits; a message with one is not of this form."""


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint."""

    step: Count
    committed_at: str
    """When its manifest was written: ISO 8601, UTC."""
    size_bytes: Count


class SkippedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is not resumed from."""

    step: Count
    reason: str
    damaged: bool = False
    """It was committed and is not whole; else it does not count for this attempt."""


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What prepare did for an attempt."""

    resume_step: Count
    """The step that the attempt begins at; 0 is the start."""
    checkpoint: str | None = None
    """Folder of the checkpoint to resume from, relative to the run directory."""
    committed: list[SavedCheckpoint] = []
    """The newest checkpoints that count, newest first."""
    skipped: list[SkippedCheckpoint] = []
    """The newest checkpoints that are not resumed from, newest first."""
    skipped_count: Count = 0
    removed: list[str] = []
    """Relative paths of the first leftovers that were removed."""
    removed_count: Count = 0
    archived: str | None = None
    """Relative path of the folder that another run's files went to."""
    model_path: str
    """Folder of the model."""
    model_commit: str | None = None
    """The commit that the hub's revision was resolved to; None for a model that is a path."""


class TerminationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process ended."""

    schema: int = 1
    role: str
    """The process's role: trainer, orchestrator, inference or prepare."""
    attempt: Count
    """The attempt that the process belonged to; 0 where it is not known, or means nothing (engines)."""
    exit_code: int
    """The process's exit code; 128 + n after signal n."""
    exit_name: str
    """The code's name in ``names.ExitCode``, the signal's name, or UNKNOWN."""
    message: str
    """Why the process ended, for people: one or a few lines."""
    step: Count | None = None
    """The training step that the role stood at."""
    rank: Count | None = None
    """The rank of a trainer process."""
    traceback: str = ""
    """The traceback's end, where the error was not expected."""
    prepared: Preparation | None = None
    """What a prepare that succeeded did."""
    saved: SavedCheckpoint | None = None
    """The newest committed checkpoint, of an orchestrator that finished or stopped. What polls saw may be older."""
    reward: float | None = None
    """Mean reward of the newest trained step, of an orchestrator. What polls saw may be older, or nothing."""
    last_attempt: Count | None = None
    """The run's highest attempt in its directory, of a prepare that came too late (FENCED)."""


def code_name(code: int) -> str:
    """The name of an exit code; 128 + n, and -n, are signal n."""
    if code in set(ExitCode):
        return ExitCode(code).name
    number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else "UNKNOWN"


def message_of_end(
    role: str,
    code: int,
    message: str,
    *,
    attempt: int = 0,
    step: int | None = None,
    rank: int | None = None,
    error: BaseException | None = None,
) -> TerminationMessage:
    """The message of a process that ends with ``code``.

    Args:
        role: the role that ends.
        code: the process's exit code.
        message: why it ends, for people.
        attempt: the attempt that the process belongs to.
        step: the training step that it stood at.
        rank: the rank of a trainer process.
        error: the error whose traceback is kept; None where the message says all.
    """
    return TerminationMessage(
        role=str(role),
        attempt=attempt,
        exit_code=int(code),
        exit_name=code_name(int(code)),
        message=message,
        step=step,
        rank=rank,
        traceback="" if error is None else "".join(traceback.format_exception(error)),
    )


def write(message: TerminationMessage, environ: Mapping[str, str] = os.environ) -> None:
    """Write the message to the file that the environment names; do nothing where it names none.

    An error is logged: it must not hide how the process ended.
    """
    place = environ.get(ENV_TERMINATION_LOG)
    if place is None:
        return
    try:
        # In place: the kubelet mounts the file, so another one cannot be renamed onto it.
        Path(place or KUBELET_FILE).write_bytes(encoded(message, environ))
    except OSError as error:
        log.warning("the termination message was not written", error=str(error))


def encoded(message: TerminationMessage, environ: Mapping[str, str] = os.environ) -> bytes:
    """JSON of at most 4 KiB without secrets: first the traceback is cut, then lists, then the message."""
    message = msgspec.structs.replace(
        message,
        message=_head(without_secrets(message.message, environ), _LONGEST_MESSAGE),
        traceback=_tail(without_secrets(message.traceback, environ), _LONGEST_TRACEBACK),
        prepared=None if message.prepared is None else _short(message.prepared),
    )
    data = msgspec.json.encode(message)
    while len(data) > LARGEST:
        message = _shorter(message)
        data = msgspec.json.encode(message)
    return data


def read(text: str | bytes) -> TerminationMessage | None:
    """Read a termination message; None if it is not of this form."""
    try:
        return msgspec.json.decode(text, type=TerminationMessage)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None


def without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """``text`` with the values of secret variables, hub tokens, bearer tokens and passwords in URLs struck out."""
    values = [value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET]
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return _SECRET_FORM.sub(_HIDDEN, text)


def _shorter(message: TerminationMessage) -> TerminationMessage:
    """Take something away from a message; every call does until nothing is left to take."""
    prepared = message.prepared
    if len(message.traceback) > len(_CUT):
        return msgspec.structs.replace(message, traceback=_tail(message.traceback, len(message.traceback) // 2))
    if prepared is not None and (prepared.removed or prepared.skipped or prepared.committed):
        lists = {name: getattr(prepared, name)[:-1] for name in _longest_list(prepared)}
        return msgspec.structs.replace(message, prepared=msgspec.structs.replace(prepared, **lists))
    if prepared is not None and len(message.message) <= len(_CUT):
        return msgspec.structs.replace(message, prepared=None)
    return msgspec.structs.replace(message, message=_head(message.message, len(message.message) // 2), traceback="")


def _longest_list(prepared: Preparation) -> list[str]:
    sizes = {name: len(msgspec.json.encode(getattr(prepared, name))) for name in ("removed", "skipped", "committed")}
    return [max(sizes, key=lambda name: (bool(getattr(prepared, name)), sizes[name]))]


def _short(prepared: Preparation) -> Preparation:
    """Cut the texts of a preparation to bounded lengths."""
    return msgspec.structs.replace(
        prepared,
        removed=[_tail(path, 200) for path in prepared.removed[:8]],
        skipped=[msgspec.structs.replace(skip, reason=_head(skip.reason, 300)) for skip in prepared.skipped[:8]],
        committed=prepared.committed[:8],
    )


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - len(_CUT))] + _CUT


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else _CUT + text[len(text) - max(0, length - len(_CUT)) :]
