"""How many engines a run has: what its manifest says, or what autoscaling decides within the manifest's bounds.

``inference.replicas`` is where autoscaling begins. The scale subresource writes that field, as do people: whoever
changes it, and not ``autoscale`` with it, has taken over, and keeps the number until ``autoscale`` is changed.
"""

from dataclasses import replace

from echorl_core.names import Phase
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.modes import num_engines
from echorl_operator.names import PodRole
from echorl_operator.observed.measurements import Measurement
from echorl_operator.observed.memory import Autoscaling, Memory
from echorl_operator.plan.autoscaling import Bounds, Decision, Engines, Pace, autoscaled
from echorl_operator.plan.builder import PlanBuilder

LONGEST_START_S = 1800.0
"""The most that is believed of the time that a new engine needs: one that was unready for a while looks like that."""


def wanted(memory: Memory, spec: EchoRLRunSpec) -> int:
    """How many engines there should be."""
    decided = memory.autoscaling
    if decided is None or decided.is_off or spec.inference.autoscale is None:
        return num_engines(spec)
    return decided.wanted


def autoscale(builder: PlanBuilder, spec: EchoRLRunSpec) -> None:
    """Decide anew, if the run is autoscaled and there is something to decide from."""
    bounds, before = spec.inference.autoscale, builder.memory.autoscaling
    if bounds is None or spec.algorithm.mode == "sft":
        # Engines of mode sft make no batches.
        builder.remember(autoscaling=None)
        return
    replicas, measured = spec.inference.replicas, _measured(builder)
    since = int(measured[-1].at) if measured else 0
    if before is None or (before.least, before.most) != (bounds.min, bounds.max):
        goes_on = before is not None and not before.is_off and before.replicas == replicas
        begin = before.wanted if before is not None and goes_on else replicas
        number = Bounds(bounds.min, bounds.max).clamped(begin)
        builder.fenced(autoscaling=Autoscaling(number, bounds.min, bounds.max, replicas, since))
        builder.autoscale = f"{_count(number)}, and {bounds.min} to {bounds.max} as the run is measured"
    elif before.is_off:
        return
    elif before.replicas != replicas:
        builder.fenced(autoscaling=replace(before, replicas=replicas, is_off=True))
        who = f"somebody has set inference.replicas to {replicas}"
        builder.autoscale = f"off: {who}; it goes on once inference.autoscale is changed, or taken out and put back"
        builder.note("AutoscalingOff", f"{who}, and keeps the number of engines from here on")
    elif measured:
        _decide(builder, before, measured)


def _decide(builder: PlanBuilder, before: Autoscaling, measured: tuple[Measurement, ...]) -> None:
    pace = Pace(before.before_engines, before.before_pace) if before.before_engines else None
    engines = Engines(before.wanted, before.since, _start_s(builder), pace)
    decision = autoscaled(engines, measured, Bounds(before.least, before.most))
    if decision.wanted == before.wanted:
        # Until something is measured again, what it was changed for is worth more.
        builder.autoscale = f"{_count(before.wanted)}: {decision.reason}" if decision.pace else ""
        return
    builder.fenced(autoscaling=_after(before, decision, int(measured[-1].at)))
    builder.autoscale = f"{_count(decision.wanted)} in place of {before.wanted}: {decision.reason}"
    builder.note("Autoscaled", builder.autoscale)


def _after(before: Autoscaling, decision: Decision, since: int) -> Autoscaling:
    more = decision.wanted > before.wanted
    return replace(
        before,
        wanted=decision.wanted,
        since=since,
        before_engines=before.wanted if more else 0,
        before_pace=decision.pace if more else 0,
    )


def _measured(builder: PlanBuilder) -> tuple[Measurement, ...]:
    """What the orchestrator of this attempt has measured while the run runs."""
    state = builder.observed.role_state
    of_this = state is not None and state.attempt == builder.memory.attempt
    return state.measured if state is not None and of_this and state.phase is Phase.RUNNING else ()


def _start_s(builder: PlanBuilder) -> float:
    """What an engine needs from its pod's creation until it is ready: the shortest of those that there are."""
    times = (
        pod.ready_since - pod.meta.created_at
        for pod in builder.pods(PodRole.INFERENCE)
        if pod.ready and pod.ready_since is not None and not any(one.restarts for one in pod.containers)
    )
    return min(LONGEST_START_S, max(0.0, min(times, default=0.0)))


def _count(engines: int) -> str:
    return "1 engine" if engines == 1 else f"{engines} engines"
