"""What the operator must know of earlier passes and cannot see in the world: kept in ``status``, read back from there.

Whatever fences an action is written before the action is carried out. If status was lost, the attempt is found again in
the labels of what is there, and prepare refuses attempts that the volume has seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from echorl_core.names import Phase, Role
from echorl_core.restarts import Ledger
from echorl_operator.observed.times import from_text, to_text

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})
WITHOUT_GANG = ENDED | {Phase.SUSPENDED}
"""No pods are wanted."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A gang's pods that were let through to the scheduler."""

    attempt: int
    pods: str
    """Digest of their uids: a pod that is not among these is a replacement, and its gang is lost."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """What was decided of the number of engines, and what that rests on."""

    wanted: int
    least: int
    """``autoscale.min`` that it was decided under."""
    most: int
    """``autoscale.max``."""
    replicas: int
    """``inference.replicas`` at that time: another value is somebody else's."""
    since: int = 0
    """Time of the newest measurement when it was decided, in seconds since the epoch; 0: there was none."""
    is_off: bool = False
    """Somebody else has written ``inference.replicas``."""
    before_engines: int = 0
    """How many there were before there were more; 0: they never became more."""
    before_pace: int = 0
    """Steps a day that the run made with these."""

    @classmethod
    def of(cls, status: object) -> "Autoscaling | None":
        """From ``status.control.autoscale``; None if it holds no decision."""
        told = {key: count for key, count in _counts(status).items() if count > 0}
        if not {"wanted", "min", "max", "replicas"} <= told.keys():
            return None
        return cls(
            wanted=told["wanted"],
            least=told["min"],
            most=told["max"],
            replicas=told["replicas"],
            since=told.get("since", 0),
            is_off=bool(told.get("off")),
            before_engines=told.get("beforeEngines", 0),
            before_pace=told.get("beforeStepsPerDay", 0),
        )

    def status(self) -> dict[str, int]:
        """As it stands there."""
        rest = {
            "since": self.since,
            "off": int(self.is_off),
            "beforeEngines": self.before_engines,
            "beforeStepsPerDay": self.before_pace,
        }
        needed = {"wanted": self.wanted, "min": self.least, "max": self.most, "replicas": self.replicas}
        return needed | {key: value for key, value in rest.items() if value}


@dataclass(frozen=True, slots=True)
class GangSize:
    """The size of an elastic gang, once that was decided."""

    pods: int
    """Of the attempt's gang."""
    replicas: int
    """``trainer.replicas`` at that time: with another value this counts no more."""
    since: int
    """When it was decided, in seconds since the epoch."""
    tries: int = 0
    """How often in a row places for more pods were of no use."""
    spares_from: int = 0
    """From when on spare pods look for the missing places, in seconds since the epoch."""
    held_since: int = 0
    """Since when a spare pod has a place, in seconds since the epoch; 0: none has."""
    grows: bool = False
    """The orchestrator is asked for a checkpoint and its end, so that the gang may grow."""

    @classmethod
    def of(cls, status: object) -> "GangSize | None":
        """From ``status.control.gang``; None if it holds no decision."""
        told = {key: count for key, count in _counts(status).items() if count > 0}
        if not {"pods", "replicas", "since"} <= told.keys():
            return None
        return cls(
            pods=told["pods"],
            replicas=told["replicas"],
            since=told["since"],
            tries=told.get("tries", 0),
            spares_from=told.get("sparesFrom", 0),
            held_since=told.get("heldSince", 0),
            grows=bool(told.get("grows")),
        )

    def status(self) -> dict[str, int]:
        """As it stands there."""
        rest = {
            "tries": self.tries,
            "sparesFrom": self.spares_from,
            "heldSince": self.held_since,
            "grows": int(self.grows),
        }
        needed = {"pods": self.pods, "replicas": self.replicas, "since": self.since}
        return needed | {key: value for key, value in rest.items() if value}


@dataclass(frozen=True)
class Memory:
    """Read from ``status``; every change makes a new one."""

    phase: Phase = Phase.PENDING
    attempt: int = 0
    revision: str = ""
    """ControllerRevision that the attempt's children are applied from; empty before the first attempt."""
    rendered_generation: int = 0
    """Generation of the spec that the attempt rests on: a newer one is an edit that is still to be carried out."""
    started_at: float | None = None
    """When the run was first seen."""
    active_since: float | None = None
    """Since when it is neither suspended nor ended: ``activeDeadlineSeconds`` counts from it."""
    ended_at: float | None = None
    failure: str = ""
    """Reason of the end in Failed, one CamelCase word."""
    prepared: int = 0
    """Attempt that prepare has finished for."""
    resume_step: int | None = None
    """Step that this attempt begins at."""
    model_commit: str = ""
    admission: Admission | None = None
    not_before: float | None = None
    """Back-off: neither is the attempt prepared earlier, nor, once it is, its orchestrator started again."""
    stop_asked_at: float | None = None
    """When the orchestrator was first asked for a last checkpoint and the end."""
    ledger: Ledger = field(default_factory=Ledger)
    restarts: Mapping[str, int] = field(default_factory=dict)
    """All so far, by the role that caused them."""
    restarts_in_place: int = 0
    """Of the gang in this attempt, as far as they are counted."""
    replacements: int = 0
    """Of these with pods in the place of lost ones, in this attempt, as far as they are told."""
    replacing: Mapping[str, int] = field(default_factory=dict)
    """Pods of the gang that are lost, and others are to take their place: when that was seen, in seconds since the
    epoch, by their index."""
    replaced_at: int = 0
    """When others were let through in their place, in seconds since the epoch; 0: the gang has gone on since."""
    engine_restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts of engines whose pods are there, by the pod's name."""
    judged_ends: Mapping[str, int] = field(default_factory=dict)
    """Ends of engines that were looked at for what they mean: by the pod's name, how many."""
    counted: str = ""
    """Uid of the pod whose end was counted last: it may still be there when the next pass looks."""
    lost_checkpoint: str = ""
    """Which checkpoint prepare could not resume from, and why; empty once one after the resume step is committed."""
    preparations: int = 0
    """Prepare pods of this attempt that failed."""
    step: int = 0
    """Highest step that was ever reached."""
    stepped_attempt: int = 0
    """Newest attempt that has made a step of its own."""
    notices: int = 0
    """Pods and gangs that somebody took away, so far."""
    last_notice: str = ""
    """The newest of these, in one sentence."""
    noticed_attempt: int = 0
    """Newest attempt whose gang was given notice."""
    autoscaling: Autoscaling | None = None
    """None: the manifest's number of engines stands."""
    gang_size: GangSize | None = None
    """None: the gang has the manifest's number of pods."""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Memory":
        """What a status holds; what cannot be read is as if it had never been written."""
        control = _mapping(status.get("control"))
        admitted = control.get("admittedAttempt")
        return cls(
            phase=_phase(status),
            attempt=_count(status.get("attempt")),
            revision=_text(status.get("revision")),
            # Before it stood in control it was the status's own.
            rendered_generation=_count(control.get("renderedGeneration", status.get("observedGeneration"))),
            started_at=from_text(status.get("startTime")),
            active_since=from_text(control.get("activeSince")),
            ended_at=from_text(status.get("completionTime")),
            failure=_text(control.get("failure")),
            prepared=_count(control.get("preparedAttempt")),
            resume_step=_count(status.get("resumeStep")) if "resumeStep" in status else None,
            model_commit=_text(_mapping(status.get("model")).get("revision")),
            admission=Admission(admitted, _text(control.get("admittedPods"))) if isinstance(admitted, int) else None,
            not_before=from_text(control.get("notBefore")),
            stop_asked_at=from_text(control.get("stopAskedAt")),
            ledger=Ledger(_roles(control.get("restartsUsed")), _count(control.get("reachedStep"))),
            restarts=_counts(status.get("restartsByRole")),
            restarts_in_place=_count(control.get("restartsInPlace")),
            replacements=_count(control.get("replacements")),
            replacing={key: at for key, at in _counts(control.get("replacing")).items() if key.isdigit()},
            replaced_at=_count(control.get("replacedAt")),
            engine_restarts=_counts(control.get("engineRestarts")),
            judged_ends=_counts(control.get("judgedEnds")),
            counted=_text(control.get("countedPod")),
            lost_checkpoint=_text(control.get("lostCheckpoint")),
            preparations=_count(control.get("failedPreparations")),
            step=_count(status.get("step")),
            notices=_count(status.get("notices")),
            last_notice=_text(status.get("lastNotice")),
            stepped_attempt=_count(control.get("steppedAttempt")),
            noticed_attempt=_count(control.get("noticedAttempt")),
            autoscaling=Autoscaling.of(control.get("autoscale")),
            gang_size=GangSize.of(control.get("gang")),
        )

    def control(self) -> dict[str, Any]:
        """``status.control``; what is at its default is left out."""
        written = {
            "activeSince": to_text(self.active_since),
            "failure": self.failure,
            "preparedAttempt": self.prepared,
            "admittedAttempt": None if self.admission is None else self.admission.attempt,
            "admittedPods": None if self.admission is None else self.admission.pods,
            "notBefore": to_text(self.not_before),
            "stopAskedAt": to_text(self.stop_asked_at),
            "restartsUsed": {str(role): count for role, count in self.ledger.used.items()},
            "reachedStep": self.ledger.reached,
            "restartsInPlace": self.restarts_in_place,
            "replacements": self.replacements,
            "replacing": dict(self.replacing),
            "replacedAt": self.replaced_at,
            "engineRestarts": dict(self.engine_restarts),
            "judgedEnds": dict(self.judged_ends),
            "countedPod": self.counted,
            "failedPreparations": self.preparations,
            "lostCheckpoint": self.lost_checkpoint,
            "steppedAttempt": self.stepped_attempt,
            "noticedAttempt": self.noticed_attempt,
            "autoscale": None if self.autoscaling is None else self.autoscaling.status(),
            "gang": None if self.gang_size is None else self.gang_size.status(),
        }
        # An attempt that was found again in labels rests on nobody knows what: its 0 is written, too.
        rendered = {"renderedGeneration": self.rendered_generation} if self.attempt else {}
        return rendered | {key: value for key, value in written.items() if value}

    def admitted(self) -> bool:
        """Whether the current attempt's gang was let through."""
        return self.admission is not None and self.admission.attempt == self.attempt

    def next_attempt(self, attempt: int, revision: str, generation: int) -> "Memory":
        """The memory with which ``attempt`` begins."""
        return replace(
            self,
            attempt=attempt,
            revision=revision,
            rendered_generation=generation,
            resume_step=None,
            admission=None,
            stop_asked_at=None,
            preparations=0,
            restarts_in_place=0,
            replacements=0,
            replacing={},
            replaced_at=0,
            ended_at=None,
            failure="",
            gang_size=None if self.gang_size is None else replace(self.gang_size, held_since=0, grows=False),
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _counts(value: object) -> dict[str, int]:
    return {key: count for key, count in _mapping(value).items() if isinstance(count, int)}


def _phase(status: Mapping[str, Any]) -> Phase:
    """The phase; an end is none without its time, which is written together with it: then somebody else wrote it."""
    value = status.get("phase")
    phase = Phase(value) if isinstance(value, str) and value in set(Phase) else Phase.PENDING
    if phase in ENDED and from_text(status.get("completionTime")) is None:
        return Phase.PENDING
    return phase


def _roles(value: object) -> dict[Role, int]:
    return {Role(key): count for key, count in _mapping(value).items() if key in set(Role) and isinstance(count, int)}
