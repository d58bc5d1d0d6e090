"""What the supervisor itself knows of a run, on disk: ``state.json`` and ``events.jsonl``."""

import errno
import os
import resource
import time
import weakref
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from echorl_cli.local.proctable import cpu_of_descendants_s
from echorl_core import jsonsafe
from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.names import Phase, Role
from echorl_core.rundir import write_file

_TIMELINE_LENGTH = 200
_PENDING_EVENTS = 1000
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})


def now() -> str:
    """The present time in ISO 8601 and UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """Phase, restarts and timeline of one run; goes on where an earlier supervisor of the same run ended.

    A file that cannot be written is no reason for the run to end: what it lacks is written as soon as that works.
    """

    def __init__(self, root: Path, name: str, uid: str) -> None:
        self._root = root
        # As long as it is open, no other folder gets its inode.
        self._folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._folder)
        self._pending: list[str] = []
        self.problem: str | None = None
        """Why the files lag behind; None if they do not."""
        self._file = root / "state.json"
        self._events = root / "events.jsonl"
        self._begun = time.monotonic()
        self._name, self._uid = name, uid
        self.phase = Phase.PENDING
        self.attempt = 0
        self.reason = ""
        before = _read(self._file, uid)
        self._timeline: list[dict[str, Any]] = [] if before is None else before.timeline
        self.restarts: Counter[str] = Counter({} if before is None else before.restarts_by_cause)
        self._created = now() if before is None else before.created
        self._wall_before = 0.0 if before is None else before.wall_s
        self._cpu_before = 0.0 if before is None else before.cpu_s
        self._started = now()
        self._setup_s: float | None = None
        self._setup_cpu_s: float | None = None
        self._exit_code: int | None = None
        if before is not None and before.phase not in _ENDED:
            self.restarts["supervisor"] += 1

    @property
    def has_folder(self) -> bool:
        """Whether the run's folder is still the one that this supervisor began in."""
        try:
            return os.path.samestat(self._root.stat(), os.fstat(self._folder))
        except OSError:
            return False

    def enter(self, phase: Phase, reason: str, *, attempt: int | None = None) -> None:
        """Note a phase and why it began; an unchanged one is noted once."""
        attempt = self.attempt if attempt is None else attempt
        if (phase, reason, attempt) == (self.phase, self.reason, self.attempt):
            return
        self.phase, self.reason, self.attempt = phase, reason, attempt
        if phase is Phase.RUNNING and self._setup_s is None:
            self._setup_s = round(time.monotonic() - self._begun, 3)
            self._setup_cpu_s = round(_cpu_s() + cpu_of_descendants_s(os.getpid()), 3)
        self._timeline.append({"phase": phase, "since": now(), "attempt": attempt, "reason": reason})
        del self._timeline[:-_TIMELINE_LENGTH]
        self.event("phase", phase=phase, reason=reason)

    def restarted(self, role: Role, reason: str) -> None:
        """Count a restart."""
        self.restarts[role] += 1
        self.event("restart", role=role, reason=reason)

    def ended(self, exit_code: int) -> None:
        """Note how the supervisor ends."""
        self._exit_code = exit_code
        self.save()

    def event(self, kind: str, **fields: Any) -> None:
        """Append one line to ``events.jsonl``, and write ``state.json`` anew."""
        line = jsonsafe.dumps({"time": now(), "event": kind, "attempt": self.attempt, **fields}) + "\n"
        self._pending = [*self._pending, line][-_PENDING_EVENTS:]
        self.save()

    def save(self) -> None:
        """Write ``state.json``, and the events that are not written yet."""
        if not self.has_folder:
            self.problem = f"{self._root}: is gone"  # and must not come back half empty
            return
        problems = []
        for write in (self._write_state, self._write_events):
            try:
                write()
            except OSError as error:
                problems.append(f"{error.filename or self._root}: {error.strerror or error}")
        self.problem = problems[0] if problems else None

    def _write_events(self) -> None:
        if not self._pending:
            return
        handle = os.open(self._events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size, data = os.fstat(handle).st_size, "".join(self._pending).encode()
            if os.write(handle, data) != len(data):
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._events))
        finally:
            os.close(handle)
        self._pending = []

    def _write_state(self) -> None:
        state = {
            "run": self._name,
            "uid": self._uid,
            "phase": self.phase,
            "reason": self.reason,
            "attempt": self.attempt,
            "restarts": sum(self.restarts.values()),
            "restarts_by_cause": dict(self.restarts),
            "created": self._created,
            "started": self._started,
            "setup_s": self._setup_s,
            "setup_cpu_s": self._setup_cpu_s,
            "wall_s": round(self._wall_before + time.monotonic() - self._begun, 3),
            "cpu_s": round(self._cpu_before + _cpu_s(), 3),
            "exit_code": self._exit_code,
            "timeline": self._timeline,
        }
        data = (jsonsafe.dumps(state, indent=2) + "\n").encode()
        try:
            write_file(self._file, data)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not _written_in_place(self._file, data):
                raise


def _written_in_place(path: Path, data: bytes) -> bool:
    """Whether a file could be replaced within the blocks that it has: what a full disk still takes."""
    try:
        with path.open("r+b", buffering=0) as file:
            if len(data) > os.fstat(file.fileno()).st_blocks * 512:
                return False
            file.write(data)
            file.truncate()
    except OSError:
        return False
    return True


def _cpu_s() -> float:
    """CPU seconds of this process and of all its descendants that have ended and were waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class _Before(msgspec.Struct):
    """What counts of an earlier ``state.json``."""

    uid: str
    phase: str
    created: str
    timeline: list[dict[str, Any]] = []
    restarts_by_cause: dict[str, int] = {}
    wall_s: float = 0.0
    cpu_s: float = 0.0


def _read(path: Path, uid: str) -> _Before | None:
    """What an earlier supervisor of the same run left; None if there was none or it cannot be read."""
    try:
        state = msgspec.json.decode(read_capped(path, MAX_JSON_BYTES), type=_Before)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return state if state.uid == uid else None
