"""Engines that end, and that the kubelet starts again in their pods.

Nobody decides that they are started again, so none of it counts against ``failurePolicy.maxRestarts``; but people want
to see it, and the end of one may be the end of the run.
"""

from dataclasses import replace

from echorl_core.restarts import end_of_run
from echorl_manifest.compile.failure_policy import restart_rules
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase, Kind, PodRecord
from echorl_operator.plan import endings, notices
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.deaths import death_of, main_container
from echorl_operator.plan.outcome import Outcome
from echorl_operator.plan.recovery import reason_of


def count_restarts(builder: PlanBuilder) -> None:
    """Add to the run's restarts what pods of engines count beyond what was added before."""
    pods = builder.observed.of(PodRole.INFERENCE)
    counts = {pod.meta.name: sum(container.restarts for container in pod.containers) for pod in pods}
    before = builder.memory.engine_restarts
    counted = {name: max(count, before.get(name, 0)) for name, count in counts.items()}
    if fresh := sum(count - before.get(name, 0) for name, count in counted.items()):
        role = str(PodRole.INFERENCE)
        builder.remember(restarts={**builder.memory.restarts, role: builder.memory.restarts.get(role, 0) + fresh})
    builder.remember(engine_restarts={name: count for name, count in counted.items() if count})


def handle_engine_ends(builder: PlanBuilder, spec: EchoRLRunSpec) -> Outcome:
    """Fail the run if an engine ended in a way that no restart mends, or that a rule fails the run for.

    Each end is judged once, so that neither a rule that comes later nor a run that goes on after its failure meets old
    ones. Until all engines are of the newest template, ends may be of one that the user has mended meanwhile.
    """
    if not _rolled_out(builder):
        return Outcome.DONE
    judged, deaths = dict[str, int](), []
    for pod in builder.pods(PodRole.INFERENCE):
        before = builder.memory.judged_ends.get(pod.meta.name, 0)
        number, ended = _last_end(pod)
        main = main_container(pod)
        if pod.disrupted and main is not None and main.restarts + 1 > before:
            # The end that is to come, or has come.
            number, ended = main.restarts + 1, None
            notices.note_notice(builder, notices.words_of(pod))
        if ended is not None and number > before and pod.meta.deleted_at is None:
            deaths.append(death_of(ended))
        judged[pod.meta.name] = max(number, before)
    builder.remember(judged_ends={name: number for name, number in judged.items() if number})
    if (end := end_of_run(deaths, restart_rules(spec))) is None:
        return Outcome.DONE
    endings.fail(builder, reason_of(end), f"inference: {end.reason}")
    return Outcome.DECIDED


def _rolled_out(builder: PlanBuilder) -> bool:
    engines = builder.child(Kind.DEPLOYMENT, names.inference(builder.observed.run.key.name))
    if engines is None or engines.observed_generation < engines.meta.generation:
        return False
    return engines.updated == engines.replicas


def _last_end(pod: PodRecord) -> tuple[int, PodRecord | None]:
    """How often the engine's process has ended, and the pod as it looked when that was last; 0 and None: never."""
    main = main_container(pod)
    if main is None:
        return 0, None
    if main.phase is ContainerPhase.TERMINATED:
        return main.restarts + 1, pod
    if main.last is None:
        return 0, None
    # A container that waits to be started again counts as started again only then.
    number = main.restarts + (main.phase is ContainerPhase.WAITING)
    return number, replace(pod, containers=(main.last,))
