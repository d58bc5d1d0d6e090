"""Adds up what happens to runs: an accumulator that is told what is observed, and when.

It knows what it was told since its process began. What happened while no operator led is not counted, but for what
status still shows: a gang that is lost under one operator and prepared under the next counts its lost steps there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from echorl_core.names import Phase
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.accounting.usage import GPU_ROLES, GpuState, Usage, usage
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import ENDED, Memory
from echorl_operator.observed.runs import RunKey, RunRecord
from echorl_operator.observed.times import from_text
from echorl_operator.observed.world import Observed


@dataclass(frozen=True, slots=True)
class Findings:
    """What one look at a run brought to light."""

    restarts: tuple[Restart, ...] = ()
    notices: int = 0
    """Pods and gangs that somebody took away."""
    first_step_s: float | None = None
    """Seconds from the run's creation to its first step, at the look that sees it."""
    lost_steps: int | None = None
    """Steps that an attempt has to make again, at the look that sees where it begins."""


NOTHING = Findings()


@dataclass(slots=True)
class _Run:
    uid: str
    memory: Memory
    step: int
    """Highest step of this attempt; until the next one is prepared, of the one before."""
    reached: int
    """Highest step of all attempts."""
    awaits_first_step: bool
    since: float
    usage: Usage = field(default_factory=Counter)
    """What the run's GPUs have been doing since then."""
    committed_at: float | None = None
    planned: Restart | None = None


class RunAccounts:
    """The accounts of all runs that one process looks after."""

    def __init__(self, gpu_resource: str) -> None:
        """``gpu_resource`` is the nodes' resource to count, such as ``nvidia.com/gpu``."""
        self._resource = gpu_resource
        self._runs: dict[RunKey, _Run] = {}
        self._gpu_seconds = {(role, state): 0.0 for role in GPU_ROLES for state in GpuState}

    def observe(self, observed: Observed) -> Findings:
        """Take in what is there at ``observed.now``. The first look at a run finds nothing: nobody knows since when."""
        record, now = observed.run, observed.now
        memory = Memory.of(record.status)
        account = self._runs.get(record.key)
        if account is not None and account.uid != record.uid:
            self.forget(record.key, now)
            account = None
        findings = NOTHING
        if account is None:
            account = self._runs[record.key] = _first_look(observed, memory)
        else:
            self._settle(account, now)
            findings = _compare(account, observed, memory)
        account.memory = memory
        account.committed_at = _committed_at(record)
        account.usage = usage(observed, self._resource, recovering=_recovers(account, observed, memory))
        return findings

    def planned(self, key: RunKey, restart: Restart | None) -> None:
        """What the pass that follows a look is about to do; it counts once status shows that it was done."""
        account = self._runs.get(key)
        if account is not None:
            account.planned = restart

    def forget(self, key: RunKey, now: float) -> None:
        """Close the account of a run that is gone."""
        account = self._runs.pop(key, None)
        if account is not None:
            self._settle(account, now)

    def gpu_seconds(self, now: float) -> Mapping[tuple[PodRole, GpuState], float]:
        """GPU-seconds up to ``now``, seconds since the epoch. Every role and state is there."""
        for account in self._runs.values():
            self._settle(account, now)
        return dict(self._gpu_seconds)

    def phases(self) -> Mapping[Phase, int]:
        """Number of runs by phase; every phase is there."""
        phases = Counter(account.memory.phase for account in self._runs.values())
        return {phase: phases[phase] for phase in Phase}

    def failures(self) -> Mapping[str, int]:
        """Number of runs that have failed and are still there, by the reason of their end."""
        failed = (account.memory for account in self._runs.values() if account.memory.phase is Phase.FAILED)
        return Counter(memory.failure or "Unknown" for memory in failed)

    def checkpoint_ages(self, now: float) -> Iterator[tuple[RunKey, float]]:
        """Seconds since the newest committed checkpoint, of runs that may still make one."""
        for key, account in self._runs.items():
            if account.committed_at is not None and account.memory.phase not in (*ENDED, Phase.SUSPENDED):
                yield key, max(0.0, now - account.committed_at)

    def autoscaled(self) -> Iterator[tuple[RunKey, int]]:
        """Engines that autoscaling wants, of runs that it decides for."""
        for key, account in self._runs.items():
            decided = account.memory.autoscaling
            if decided is not None and not decided.is_off and account.memory.phase not in (*ENDED, Phase.SUSPENDED):
                yield key, decided.wanted

    def missing_trainer_pods(self) -> Iterator[tuple[RunKey, int]]:
        """Trainer pods that elastic gangs go on without."""
        for key, account in self._runs.items():
            size = account.memory.gang_size
            if size is not None and account.memory.phase not in (*ENDED, Phase.SUSPENDED):
                yield key, size.replicas - size.pods

    def _settle(self, account: _Run, now: float) -> None:
        seconds = max(0.0, now - account.since)
        for key, gpus in account.usage.items():
            self._gpu_seconds[key] += gpus * seconds
        account.since = now


def _first_look(observed: Observed, memory: Memory) -> _Run:
    step = _step(observed, memory)
    untouched = memory.attempt <= 1 and not memory.restarts and "Suspended" not in _phases(observed.run.status)
    return _Run(
        uid=observed.run.uid,
        memory=memory,
        step=step,
        reached=max(step, memory.ledger.reached),
        awaits_first_step=untouched and memory.phase not in ENDED and step <= (memory.resume_step or 0),
        since=observed.now,
    )


def _compare(account: _Run, observed: Observed, memory: Memory) -> Findings:
    """What has happened since the last look; ``account`` is brought up to date, but for what ``observe`` sets."""
    lost: int | None = None
    if memory.prepared == memory.attempt > 1 and account.memory.prepared != memory.prepared:
        begins_at = memory.resume_step or 0
        lost, account.step = max(0, account.step - begins_at), begins_at
    elif memory.prepared == memory.attempt:
        account.step = max(account.step, _step(observed, memory))
    account.reached = max(account.reached, account.step, memory.ledger.reached)
    return Findings(
        restarts=(*_restarts(account, memory), *_engines_restarted(account, memory)),
        notices=max(0, memory.notices - account.memory.notices),
        first_step_s=_first_step(account, observed, memory),
        lost_steps=lost,
    )


def _restarts(account: _Run, memory: Memory) -> Iterator[Restart]:
    before, planned = account.memory, account.planned
    counts = {role: count for role, count in memory.restarts.items() if role != PodRole.INFERENCE}
    roles = [role for role, count in counts.items() if count > before.restarts.get(role, 0)]
    tried_again = memory.attempt == before.attempt and memory.preparations > before.preparations
    if planned is not None and (roles or tried_again or memory.attempt > before.attempt):
        yield planned
    else:
        yield from (Restart(role, Cause.UNKNOWN) for role in roles)
    account.planned = None


def _engines_restarted(account: _Run, memory: Memory) -> Iterator[Restart]:
    """Kubelets start engines again; the run's status counts how often."""
    before, now = (count.restarts.get(PodRole.INFERENCE, 0) for count in (account.memory, memory))
    for _ in range(before, now):
        yield Restart(PodRole.INFERENCE, Cause.CONTAINER)


def _first_step(account: _Run, observed: Observed, memory: Memory) -> float | None:
    """Seconds to the first step; None for a run that was suspended before it, whose time says nothing."""
    if memory.phase in (*ENDED, Phase.SUSPENDED) and account.step <= (memory.resume_step or 0):
        account.awaits_first_step = False
    if not account.awaits_first_step or memory.resume_step is None or account.step <= memory.resume_step:
        return None
    account.awaits_first_step = False
    return max(0.0, observed.now - observed.run.created_at)


def _recovers(account: _Run, observed: Observed, memory: Memory) -> bool:
    """Whether the attempt began with a restart, and the run was further before."""
    restarted = (str(Phase.RESTARTING), memory.attempt) in {
        (entry.get("phase"), entry.get("attempt")) for entry in _timeline(observed.run.status)
    }
    return restarted and (memory.phase is not Phase.RUNNING or account.step < account.reached)


def _step(observed: Observed, memory: Memory) -> int:
    state = observed.role_state
    told = state.step if state is not None and state.attempt == memory.attempt else None
    return memory.step if told is None else told


def _committed_at(record: RunRecord) -> float | None:
    checkpoint = record.status.get("checkpoint")
    return from_text(checkpoint.get("committedAt")) if isinstance(checkpoint, Mapping) else None


def _phases(status: Mapping[str, Any]) -> set[object]:
    return {entry.get("phase") for entry in _timeline(status)}


def _timeline(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in status.get("timeline", []) if isinstance(entry, Mapping)]
