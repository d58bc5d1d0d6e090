"""What the supervisor itself knows of a run, on disk: ``state.json`` and ``events.jsonl``."""

import json
import os
import resource
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from echorl_cli.local.proctable import cpu_of_descendants_s
from echorl_core import jsonsafe
from echorl_core.names import Phase, Role
from echorl_core.rundir import write_file

_TIMELINE_LENGTH = 200
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})


def now() -> str:
    """ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """Phase, restarts and timeline of one run; goes on where an earlier supervisor of the same run ended."""

    def __init__(self, root: Path, name: str, uid: str) -> None:
        self._file = root / "state.json"
        self._events = root / "events.jsonl"
        self._begun = time.monotonic()
        self._name, self._uid = name, uid
        self.phase = Phase.PENDING
        self.attempt = 0
        self.reason = ""
        before = _read(self._file, uid)
        self._timeline: list[dict[str, Any]] = before.get("timeline", [])
        self.restarts: Counter[str] = Counter(before.get("restarts_by_cause", {}))
        self._created = before.get("created", now())
        self._wall_before = float(before.get("wall_s") or 0.0)
        self._cpu_before = float(before.get("cpu_s") or 0.0)
        self._started = now()
        self._setup_s: float | None = None
        self._setup_cpu_s: float | None = None
        self._exit_code: int | None = None
        if before and before.get("phase") not in _ENDED:
            self.restarts["supervisor"] += 1

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
        with self._events.open("a") as file:
            file.write(jsonsafe.dumps({"time": now(), "event": kind, "attempt": self.attempt, **fields}) + "\n")
        self.save()

    def save(self) -> None:
        """Write ``state.json``."""
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
        write_file(self._file, (jsonsafe.dumps(state, indent=2) + "\n").encode())


def _cpu_s() -> float:
    """CPU seconds of this process and of all its descendants that have ended and were waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _read(path: Path, uid: str) -> dict[str, Any]:
    """What an earlier supervisor of the same run left; empty if there was none or it cannot be read."""
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) and state.get("uid") == uid else {}
