"""What follows when part of an admitted attempt ends: an engine alone, the orchestrator alone, the gang, the run."""

from echorl_core.names import ExitCode, Phase, Role
from echorl_core.restarts import Action, Death, Decision, decide, end_of_run
from echorl_manifest.compile.failure_policy import restart_policy, restart_rules
from echorl_manifest.models.base import duration_seconds
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.plan import edits, elastic_gang, endings
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.causes import cause_of, cause_of_pod
from echorl_operator.plan.deaths import death_of, exit_code, main_container
from echorl_operator.plan.gang import Gang
from echorl_operator.plan.notices import (
    handle_notices,
    note_notice,
    note_notice_of_gang,
    note_notice_of_orchestrator,
)
from echorl_operator.plan.outcome import Outcome

SETTLE_S = 3.0
"""How long is waited after a death for others of the same cause."""
PART_S = 120.0
"""Longest time between the ends of the ranks and of the orchestrator."""


def handle_ends(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Outcome:
    """Decide what follows from the ends of pods, and from steps that do not come."""
    state = _state(builder)
    orchestrator = ended_orchestrator(builder)
    if _has_finished(builder, state, orchestrator):
        endings.succeed(builder, f"all {spec.max_steps} steps are done")
        return Outcome.DECIDED
    ruled = restart_rules(spec)
    stopped = orchestrator is not None and exit_code(orchestrator) == ExitCode.STOPPED
    if orchestrator is not None and stopped and not any(rule.matches(death_of(orchestrator)) for rule in ruled):
        return _handle_stopped(builder, spec)
    if state is not None and state.failure_code is not None:
        # It still shows why, for a moment, and ends then: what is restarted is decided when it has ended.
        told = Death(Role.ORCHESTRATOR, "orchestrator", state.failure_code, message=state.failure_message)
        if (end := end_of_run([told], ruled)) is not None:
            endings.fail(builder, reason_of(end), end.reason)
            return Outcome.DECIDED
    if orchestrator is not None and orchestrator.meta.uid == builder.memory.counted:
        builder.delete_pods([orchestrator], "its end is seen to")
        orchestrator = None
    if handle_notices(builder, gang) is Outcome.PENDING:
        return Outcome.DECIDED
    deaths = _deaths(builder, gang, orchestrator)
    if deaths:
        return _handle_deaths(builder, gang, spec, deaths, orchestrator)
    return _enforce_stall_policy(builder, spec, state)


def handle_orchestrator(builder: PlanBuilder, gang: Gang, spec: EchoRLRunSpec) -> Outcome:
    """See to the end of an orchestrator by itself, whatever becomes of the gang. Done: there is none to decide on."""
    note_notice_of_orchestrator(builder)
    ended = ended_orchestrator(builder)
    if ended is None:
        return Outcome.DONE
    if ended.meta.uid == builder.memory.counted:
        builder.delete_pods([ended], "its end is seen to")
        return Outcome.DONE
    return _handle_deaths(builder, gang, spec, [(death_of(ended), _ended_at(ended))], ended)


def count_restarts_in_place(builder: PlanBuilder, state: RoleState) -> None:
    """Add restarts that the trainer's pod has decided on itself to the run's; they count against the same limit."""
    memory = builder.memory
    fresh = state.restarts_in_place - memory.restarts_in_place
    if fresh <= 0:
        return
    role = Role.TRAINER
    builder.remember(
        ledger=memory.ledger.with_restart(role, memory.step, count=fresh),
        restarts={**memory.restarts, str(role): memory.restarts.get(str(role), 0) + fresh},
        restarts_in_place=state.restarts_in_place,
    )
    builder.restart = Restart(role, Cause.CRASHED)
    builder.note("RestartedInPlace", f"trainer processes went on from memory: {state.restart_reason}", warning=True)


def _handle_stopped(builder: PlanBuilder, spec: EchoRLRunSpec) -> Outcome:
    if elastic_gang.is_growing(builder):
        elastic_gang.grow(builder, spec)
        return Outcome.DECIDED
    # Somebody stopped the run past us; the manifest says that it goes on.
    builder.restart = Restart(Role.TRAINER, Cause.STOPPED)
    return _restart(builder, spec, [], "the orchestrator was stopped on request, and spec.suspend is false")


def _state(builder: PlanBuilder) -> RoleState | None:
    state = builder.observed.role_state
    return state if state is not None and state.attempt == builder.memory.attempt else None


def ended_orchestrator(builder: PlanBuilder) -> PodRecord | None:
    """An orchestrator's pod that has ended."""
    return next((pod for pod in builder.pods(PodRole.ORCHESTRATOR) if pod.ended), None)


def _has_finished(builder: PlanBuilder, state: RoleState | None, orchestrator: PodRecord | None) -> bool:
    if orchestrator is not None:
        return exit_code(orchestrator) == ExitCode.OK and orchestrator.attempt == builder.memory.attempt
    return state is not None and state.phase is Phase.SUCCEEDED


def _deaths(builder: PlanBuilder, gang: Gang, orchestrator: PodRecord | None) -> list[tuple[Death, float | None]]:
    """What ended too early, and when."""
    deaths: list[tuple[Death, float | None]] = []
    crashed = [pod for pod in gang.ended if exit_code(pod) != ExitCode.OK]
    finished = [pod for pod in gang.ended if exit_code(pod) == ExitCode.OK]
    deaths += [(death_of(pod), _ended_at(pod)) for pod in crashed]
    ending = [pod for pod in gang.current if pod.meta.deleted_at is not None and not pod.ended]
    deaths += [(death_of(pod), None) for pod in ending]
    admission = builder.memory.admission
    if not deaths and admission is not None and not gang.is_admitted(admission.pods):
        if finished and len(finished) + len([pod for pod in gang.current if not pod.gated]) >= gang.wanted:
            deaths += _parted(builder, finished)
        else:
            missing = Death(Role.TRAINER, "trainer", int(ExitCode.CRASH), why=_what_is_missing(gang), notice=True)
            deaths.append((missing, None))
    elif not deaths and finished:
        deaths += _parted(builder, finished)
    if orchestrator is not None:
        deaths.append((death_of(orchestrator), _ended_at(orchestrator)))
    return deaths


def _parted(builder: PlanBuilder, finished: list[PodRecord]) -> list[tuple[Death, float | None]]:
    """Ranks that finished; so should the orchestrator, soon."""
    latest = max((_ended_at(pod) or builder.now for pod in finished), default=builder.now)
    if builder.now < latest + PART_S:
        builder.wake(latest + PART_S)
        return []
    why = "its ranks finished, and the orchestrator goes on"
    return [(Death(Role.TRAINER, finished[0].meta.name, int(ExitCode.OK), why=why), latest)]


def _what_is_missing(gang: Gang) -> str:
    replaced = [pod.meta.name for pod in gang.current if pod.gated]
    if replaced:
        return f"{', '.join(replaced[:3])} took the place of a pod that is gone"
    return f"{gang.wanted - len(gang.current)} of {gang.wanted} pods are gone"


def _ended_at(pod: PodRecord) -> float | None:
    main = main_container(pod)
    return None if main is None else main.since


def _handle_deaths(
    builder: PlanBuilder,
    gang: Gang,
    spec: EchoRLRunSpec,
    dated: list[tuple[Death, float | None]],
    orchestrator: PodRecord | None,
) -> Outcome:
    deaths = [death for death, _ in dated]
    gang_is_whole = all(death.role is not Role.TRAINER for death in deaths)
    decision = decide(
        deaths,
        ledger=builder.memory.ledger,
        policy=restart_policy(spec),
        rules=restart_rules(spec),
        gang_is_whole=gang_is_whole,
    )
    newest = max((at for _, at in dated if at is not None), default=None)
    # After a notice nothing is waited for once the gang's own pods have all ended: none is there to say more.
    is_quiet = decision.notice and all(pod.ended or pod.gated for pod in gang.current)
    if decision.action is not Action.FAIL and not is_quiet and newest is not None and builder.now < newest + SETTLE_S:
        builder.wake(newest + SETTLE_S)
        builder.say(builder.phase, "Settling", decision.reason)
        return Outcome.DECIDED
    if decision.action is Action.FAIL:
        endings.fail(builder, reason_of(decision), decision.reason)
        return Outcome.DECIDED
    alone = orchestrator if decision.action is Action.RESTART_ALONE else None
    cause = cause_of(gang, orchestrator) if alone is None else cause_of_pod(alone)
    builder.restart = Restart(decision.role or Role.TRAINER, cause)
    if decision.notice:
        (note_notice_of_gang if decision.action is Action.NEW_ATTEMPT else note_notice)(builder, decision.reason)
    if alone is not None:
        count(builder, decision)
        builder.fenced(counted=alone.meta.uid, not_before=held_back(builder, decision.delay_s))
        builder.delete_pods([alone], decision.reason)
        builder.note("OrchestratorRestarted", decision.reason, warning=True)
        builder.say(builder.phase, "OrchestratorRestarted", decision.reason)
        return Outcome.DECIDED
    return _restart(builder, spec, [decision], decision.reason)


def count(builder: PlanBuilder, decision: Decision) -> None:
    """Count what is decided as a restart, and against ``maxRestarts`` if it counts there."""
    role = decision.role or Role.TRAINER
    restarts = {**builder.memory.restarts, str(role): builder.memory.restarts.get(str(role), 0) + 1}
    builder.remember(restarts=restarts)
    if decision.counts:
        builder.remember(ledger=builder.memory.ledger.with_restart(role, builder.memory.step))


def held_back(builder: PlanBuilder, delay_s: float) -> float | None:
    """Until when what starts again waits: for its own back-off, and what else of the attempt waits for already."""
    ends = (builder.memory.not_before, _not_before(builder, delay_s))
    return max((end for end in ends if end is not None), default=None)


def _restart(builder: PlanBuilder, spec: EchoRLRunSpec, decisions: list[Decision], reason: str) -> Outcome:
    """A new attempt; its pods are asked for at once, and let through after the back-off."""
    delay = 0.0
    for decision in decisions:
        count(builder, decision)
        delay = decision.delay_s
    edits.begin_attempt(builder, spec, Phase.RESTARTING, "GangRestarted", reason)
    builder.remember(not_before=_not_before(builder, delay))
    return Outcome.DECIDED


def _not_before(builder: PlanBuilder, delay_s: float) -> float | None:
    return builder.now + delay_s if delay_s else None


def _enforce_stall_policy(builder: PlanBuilder, spec: EchoRLRunSpec, state: RoleState | None) -> Outcome:
    """Do with a run that makes no step what it says; an orchestrator that nobody reaches is unknown, not stalled."""
    if state is None or state.phase is not Phase.RUNNING:
        return Outcome.DONE
    limit = duration_seconds(spec.stall_policy.no_step_for)
    silent = builder.now - state.last_step_at
    if silent < limit:
        builder.wake(state.last_step_at + limit)
        return Outcome.DONE
    why = f"no step for {silent:.0f} s (stallPolicy.noStepFor is {spec.stall_policy.no_step_for})"
    if state.waiting_for:
        why += f"; it waits for {state.waiting_for}"
    builder.problem("Stalled", "NoStep", why)
    if spec.stall_policy.action == "Ignore":
        return Outcome.DONE
    if spec.stall_policy.action == "Fail":
        endings.fail(builder, "Stalled", why)
        return Outcome.DECIDED
    death = Death(Role.TRAINER, "the gang", -9, why=why)
    decision = decide([death], ledger=builder.memory.ledger, policy=restart_policy(spec))
    if decision.action is Action.FAIL:
        endings.fail(builder, "Stalled", decision.reason)
        return Outcome.DECIDED
    builder.restart = Restart(Role.TRAINER, Cause.STALLED)
    return _restart(builder, spec, [decision], why)


def reason_of(decision: Decision) -> str:
    """One CamelCase word for why a run fails."""
    reasons = {
        ExitCode.BAD_INPUT: "InvalidInput",
        ExitCode.NON_FINITE: "NonFinite",
        ExitCode.ENVIRONMENT: "EnvironmentFailed",
        ExitCode.FENCED: "Fenced",
        ExitCode.NOTHING_TO_TRAIN: "NothingToTrain",
    }
    return reasons.get(ExitCode(decision.exit_code), "FailedByRule" if decision.by_rule else "RestartsUsedUp")
