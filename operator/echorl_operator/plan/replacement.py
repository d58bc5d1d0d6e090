"""Lost pods of a gang whose pods hold copies for their neighbours: others take their place in the same attempt.

    a pod is lost --> counted, status names it --> its StatefulSet makes another one --> status names the new gang, and
    its gate is lifted --> the pods agree and go on from memory: the orchestrator tells of it

The pods themselves know whether the copies are there; where they are not, all of them end. An orchestrator that is
lost as well starts again by itself meanwhile. What this does not cover, and what does not come about in time, is
decided as for any gang: by a new attempt.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from echorl_core.names import ExitCode, Phase, Role
from echorl_core.restarts import Action, Death, decide
from echorl_manifest.compile.failure_policy import restart_policy, restart_rules
from echorl_manifest.compile.role_configs import replaced_within_s
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import Admission
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.plan import edits, endings, lost_nodes, recovery
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.causes import cause_of_pod
from echorl_operator.plan.deaths import death_of, exit_code, main_container, termination_message_of
from echorl_operator.plan.gang import Gang, digest
from echorl_operator.plan.notices import note_notice
from echorl_operator.plan.outcome import Outcome

_ENDS_OF_RUNS = frozenset({ExitCode.OK, ExitCode.STOPPED})
"""Codes of an orchestrator that is not started again for its gang."""
KILLED = 137
"""Code of a container whose process 1 was ended by SIGKILL."""


def is_mirrored(spec: EchoRLRunSpec) -> bool:
    """Whether pods of the gang hold copies for their neighbours."""
    memory = spec.checkpoint.memory
    return memory is not None and memory.mirror and spec.trainer.replicas > 1


def lost_pods(gang: Gang, admitted: str) -> set[int]:
    """Indices of the gang's pods that have ended, are being deleted, or are gone, other ones in their place or not.

    ``admitted``: digest of the pods that were let through.
    """
    living = {pod.index for pod in gang.current if pod.meta.deleted_at is None and not pod.ended}
    if not gang.is_admitted(admitted):
        living -= {pod.index for pod in gang.current if pod.gated}
    return {index for index in range(gang.wanted) if index not in living}


def is_covered(lost: Collection[int], pods: int) -> bool:
    """Whether the neighbour of each lost pod is there."""
    return not any((index + 1) % pods in lost for index in lost)


def handle_losses(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Outcome:
    """Have others take the place of lost pods. Done: there is nothing of that, or it is none of this module's.

    ``gang``: one that was let through.
    """
    admission, state = builder.memory.admission, _state(builder)
    if admission is None or not is_mirrored(spec):
        return Outcome.DONE
    lost = lost_pods(gang, admission.pods)
    if not lost and not builder.memory.replacing and not builder.memory.replaced_at:
        return Outcome.DONE
    fresh = sorted(lost - {int(index) for index in builder.memory.replacing})
    ends = {index: _end(gang, index) for index in fresh}
    by_themselves = any(pod is not None and _ended_by_itself(pod) for pod in ends.values())
    has_begun = builder.memory.phase is Phase.RUNNING and builder.memory.stepped_attempt == builder.memory.attempt
    if _is_over(builder, state) or not has_begun or by_themselves or not is_covered(lost, gang.wanted):
        return Outcome.DONE
    return _replace(builder, gang, spec, ends if lost or builder.memory.replacing else None)


def _replace(
    builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec, ends: Mapping[int, PodRecord | None] | None
) -> Outcome:
    """Of a gang that its neighbours' copies cover. ``ends``: of pods that are lost since; None: none is lost now."""
    replacing = builder.memory.replacing
    if ends is not None and recovery.handle_orchestrator(builder, gang, spec) is Outcome.DECIDED:
        return Outcome.DECIDED
    if _is_late(builder, _state(builder), spec):
        which = _named(builder, map(int, replacing)) if replacing else "a pod of the gang"
        why = f"{which} was lost, and the gang did not go on from memory in time"
        builder.restart = Restart(PodRole.TRAINER, Cause.POD_LOST)
        edits.begin_attempt(builder, spec, Phase.RESTARTING, "GangRestarted", why)
        return Outcome.DECIDED
    if ends:
        return _note_lost(builder, spec, ends)
    return _let_through(builder, gang) if replacing else Outcome.DONE


def _is_over(builder: PlanBuilder, state: RoleState | None) -> bool:
    orchestrator = recovery.ended_orchestrator(builder)
    if orchestrator is not None and exit_code(orchestrator) in _ENDS_OF_RUNS:
        return True
    return state is not None and (state.phase is Phase.SUCCEEDED or state.failure_code is not None)


def without_history(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Gang:
    """The gang without pods that others have taken the place of."""
    admission = builder.memory.admission
    if admission is None or not is_mirrored(spec) or not gang.is_admitted(admission.pods):
        return gang
    return Gang(gang.wanted, gang.current, ())


def count_replacements(builder: PlanBuilder, state: RoleState) -> None:
    """Tell of restarts in place with pods that have taken the place of others; their losses are counted already."""
    fresh = state.replacements - builder.memory.replacements
    if fresh <= 0:
        return
    builder.remember(replacements=state.replacements, replaced_at=0)
    builder.note("PodReplaced", f"the gang went on from memory: {state.restart_reason}", warning=True)


def _note_lost(builder: PlanBuilder, spec: EchoRLRunSpec, ends: Mapping[int, PodRecord | None]) -> Outcome:
    """Count pods that are lost, and have status name them."""
    unknown = Death(Role.TRAINER, _named(builder, ends), int(ExitCode.CRASH), why="its pod is gone", notice=True)
    deaths = [unknown if pod is None else _death_of(pod) for pod in ends.values()]
    policy = restart_policy(spec)
    rules, ledger = restart_rules(spec), builder.memory.ledger
    decision = decide(deaths, ledger=ledger, policy=policy, rules=rules, is_held=True)
    if decision.action is Action.FAIL:
        endings.fail(builder, recovery.reason_of(decision), decision.reason)
        return Outcome.DECIDED
    newest = max((at for pod in ends.values() if (at := _ended_at(pod)) is not None), default=None)
    if newest is not None and builder.now < newest + recovery.SETTLE_S:
        builder.wake(newest + recovery.SETTLE_S)
        builder.say(builder.phase, "Settling", decision.reason)
        return Outcome.DECIDED
    causes = [Cause.POD_LOST if pod is None else cause_of_pod(pod) for pod in ends.values()]
    builder.restart = Restart(PodRole.TRAINER, next(cause for cause in Cause if cause in causes))
    if decision.notice:
        note_notice(builder, decision.reason)
    recovery.count(builder, decision)
    since = dict.fromkeys(map(str, ends), int(builder.now))
    not_before = recovery.held_back(builder, 0.0 if decision.notice else decision.delay_s)
    builder.fenced(replacing={**builder.memory.replacing, **since}, not_before=not_before)
    builder.note("PodLost", f"{decision.reason}; the other pods stay", warning=True)
    builder.say(builder.phase, "ReplacingPods", f"{decision.reason}; the gang waits for another pod in its place")
    return Outcome.DECIDED


def _let_through(builder: PlanBuilder, gang: Gang) -> Outcome:
    """Once others are there for all that are lost: status names them, and then their gates are lifted."""
    memory = builder.memory
    which = _named(builder, map(int, memory.replacing))
    builder.say(builder.phase, "ReplacingPods", f"{which} is lost; the gang waits for another pod in its place")
    leaving = [pod for pod in gang.current if str(pod.index) in memory.replacing and pod.meta.deleted_at is not None]
    if hung := lost_nodes.hung(builder, leaving):
        builder.say(builder.phase, "NodeLost", lost_nodes.handle_hung_pods(builder, hung))
    if not gang.waits_whole:
        return Outcome.PENDING
    if memory.not_before is not None and builder.now < memory.not_before:
        builder.wake(memory.not_before)
        return Outcome.PENDING
    admitted = Admission(memory.attempt, digest(gang.current))
    builder.fenced(admission=admitted, replacing={}, replaced_at=int(builder.now), not_before=None)
    return Outcome.PENDING


def _is_late(builder: PlanBuilder, state: RoleState | None, spec: EchoRLRunSpec) -> bool:
    """Whether the gang should have gone on by now; nobody knows while the orchestrator is not reached."""
    begun = [*builder.memory.replacing.values(), *([at] if (at := builder.memory.replaced_at) else [])]
    if not begun or state is None:
        return False
    until = min(begun) + replaced_within_s(spec)
    if builder.now < until:
        builder.wake(until)
    return builder.now >= until


def _end(gang: Gang, index: int) -> PodRecord | None:
    """How the lost pod was seen last; None: nobody has seen it end."""
    ended = [pod for pod in gang.current if pod.index == index and (pod.ended or pod.meta.deleted_at is not None)]
    gone = [pod for pod in gang.departed if pod.index == index]
    return next(iter([*ended, *reversed(gone)]), None)


def _death_of(pod: PodRecord) -> Death:
    """As of any pod; one that was killed without a word was not told to end: its controller deletes it afterwards."""
    death = death_of(pod)
    if exit_code(pod) != KILLED or pod.disrupted or termination_message_of(pod) is not None:
        return death
    return replace(death, exit_code=-9, why=None, notice=False)


def _ended_by_itself(pod: PodRecord) -> bool:
    """Whether its process 1 decided to end, as all of the gang's do then; one that was told to was lost."""
    if exit_code(pod) == ExitCode.OK:
        return True
    told = death_of(pod).notice and exit_code(pod) != ExitCode.NOTICE
    return termination_message_of(pod) is not None and not told


def _ended_at(pod: PodRecord | None) -> float | None:
    main = None if pod is None else main_container(pod)
    return main.since if pod is not None and main is not None and pod.ended else None


def _state(builder: PlanBuilder) -> RoleState | None:
    state = builder.observed.role_state
    return state if state is not None and state.attempt == builder.memory.attempt else None


def _named(builder: PlanBuilder, indices: Iterable[int]) -> str:
    name = names.trainer(builder.observed.run.key.name)
    return ", ".join(f"{name}-{index}" for index in sorted(indices))
