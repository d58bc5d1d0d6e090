"""A role's last words: why its process ended, as JSON in the file that the kubelet reads when a container has ended.

    role --say()--> $ECHORL_TERMINATION_LOG --kubelet--> pod status --read()--> operator

At most 4 KiB, which is what the kubelet takes. Values of variables that hold secrets never stand in it.
"""

import os
import re
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path

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


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint."""

    step: int
    committed_at: str
    """ISO 8601, UTC."""
    size_bytes: int


class SkippedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is not resumed from."""

    step: int
    reason: str
    damaged: bool = False
    """It was committed and is not whole; else it does not count for this attempt."""


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What prepare did for an attempt."""

    resume_step: int
    """0: from the start."""
    checkpoint: str | None = None
    """Folder of the checkpoint to resume from, relative to the run directory."""
    committed: list[SavedCheckpoint] = []
    """Newest first; a few."""
    skipped: list[SkippedCheckpoint] = []
    """Newest first; a few."""
    skipped_count: int = 0
    removed: list[str] = []
    """First few of the leftovers that were removed, relative paths."""
    removed_count: int = 0
    archived: str | None = None
    """Where another run's files went, relative."""
    model_path: str
    """Folder of the model."""
    model_commit: str | None = None
    """That the hub's revision was resolved to; None for a model that is a path."""


class TerminationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process ended."""

    schema: int = 1
    role: str
    """trainer, orchestrator, inference or prepare."""
    attempt: int
    """0 where it is not known, or means nothing (engines)."""
    exit_code: int
    """Of the process; 128 + n after signal n."""
    exit_name: str
    """Name of the code: that of ``names.ExitCode``, of the signal, or UNKNOWN."""
    message: str
    """For people; one or a few lines."""
    step: int | None = None
    """Where the role stood."""
    rank: int | None = None
    """Of a trainer process."""
    traceback: str = ""
    """End of it, where the error was not expected."""
    prepared: Preparation | None = None
    """Of a prepare that succeeded."""
    saved: SavedCheckpoint | None = None
    """Of an orchestrator that finished or stopped: the newest committed checkpoint. What polls saw may be older."""
    last_attempt: int | None = None
    """Of a prepare that came too late (FENCED): the run's highest attempt in its directory."""


def code_name(code: int) -> str:
    """Name of an exit code; 128 + n, and -n, are signal n."""
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
    """The words for an end with ``code``.

    Args:
        role: whose.
        code: exit code of the process.
        message: for people.
        attempt: of the process.
        step: where it stood.
        rank: of a trainer process.
        error: whose traceback belongs to it; None where the message says all.
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


def write(words: TerminationMessage, environ: Mapping[str, str] = os.environ) -> None:
    """Write the words to the file that the environment names; where it names none, do nothing.

    An error is logged: it must not hide how the process ended.
    """
    place = environ.get(ENV_TERMINATION_LOG)
    if place is None:
        return
    try:
        # In place: the kubelet mounts the file, so another one cannot be renamed onto it.
        Path(place or KUBELET_FILE).write_bytes(encoded(words, environ))
    except OSError as error:
        log.warning("the termination message was not written", error=str(error))


def encoded(words: TerminationMessage, environ: Mapping[str, str] = os.environ) -> bytes:
    """JSON of at most 4 KiB without secrets: first the traceback is cut, then lists, then the message."""
    words = msgspec.structs.replace(
        words,
        message=_head(without_secrets(words.message, environ), _LONGEST_MESSAGE),
        traceback=_tail(without_secrets(words.traceback, environ), _LONGEST_TRACEBACK),
        prepared=None if words.prepared is None else _short(words.prepared),
    )
    data = msgspec.json.encode(words)
    while len(data) > LARGEST:
        words = _shorter(words)
        data = msgspec.json.encode(words)
    return data


def read(text: str | bytes) -> TerminationMessage | None:
    """The words in a termination message; None if it is not of this form."""
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


def _shorter(words: TerminationMessage) -> TerminationMessage:
    """The same with less; every call takes something away until nothing is left to take."""
    prepared = words.prepared
    if len(words.traceback) > len(_CUT):
        return msgspec.structs.replace(words, traceback=_tail(words.traceback, len(words.traceback) // 2))
    if prepared is not None and (prepared.removed or prepared.skipped or prepared.committed):
        lists = {name: getattr(prepared, name)[:-1] for name in _longest_list(prepared)}
        return msgspec.structs.replace(words, prepared=msgspec.structs.replace(prepared, **lists))
    if prepared is not None and len(words.message) <= len(_CUT):
        return msgspec.structs.replace(words, prepared=None)
    return msgspec.structs.replace(words, message=_head(words.message, len(words.message) // 2), traceback="")


def _longest_list(prepared: Preparation) -> list[str]:
    sizes = {name: len(msgspec.json.encode(getattr(prepared, name))) for name in ("removed", "skipped", "committed")}
    return [max(sizes, key=lambda name: (bool(getattr(prepared, name)), sizes[name]))]


def _short(prepared: Preparation) -> Preparation:
    """With texts of bounded length."""
    return msgspec.structs.replace(
        prepared,
        removed=[_tail(path, 200) for path in prepared.removed[:8]],
        skipped=[msgspec.structs.replace(one, reason=_head(one.reason, 300)) for one in prepared.skipped[:8]],
        committed=prepared.committed[:8],
    )


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - len(_CUT))] + _CUT


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else _CUT + text[len(text) - max(0, length - len(_CUT)) :]
