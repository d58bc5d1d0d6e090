"""When the manifest has changed: what an attempt is rendered from, and when a new one begins."""

from dataclasses import dataclass
from typing import Any

import msgspec

from echorl_core.names import Phase, Role
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.mutability import Effect, effect_of_change
from echorl_manifest.validation import parsed
from echorl_operator import names
from echorl_operator.accounting.restarts import Cause, Restart
from echorl_operator.children.amended import amended
from echorl_operator.children.assembly import cluster_problems, render
from echorl_operator.children.rendering import Rendering, spec_of
from echorl_operator.children.revision import from_revision, to_revision
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunRecord
from echorl_operator.plan import attempts
from echorl_operator.plan.actions import Create
from echorl_operator.plan.builder import PlanBuilder
from echorl_operator.plan.elasticity import applied, counts, with_trainer_pods
from echorl_operator.plan.outcome import Outcome
from echorl_operator.settings import Settings

_CAUSES = {"Edited": Cause.EDITED, "RevisionLost": Cause.EDITED, "NodeLost": Cause.NODE_LOST}
"""Causes of restarts by the reason that an attempt begins for; the cause of a death is known before."""


@dataclass(frozen=True)
class Wanted:
    """The manifest as it stands: the run if it can be carried out, else why not."""

    run: EchoRLRun | None
    problems: str

    @property
    def spec(self) -> EchoRLRunSpec | None:
        """The manifest's spec; None if it has problems."""
        return None if self.run is None else self.run.spec


def wanted(builder: PlanBuilder) -> Wanted:
    """The run's manifest, validated by today's rules, with as many trainer pods as an elastic gang has."""
    record, size = builder.observed.run, builder.memory.gang_size
    pods = size.pods if size is not None and counts(size, record.spec) else None
    known = (record.spec, builder.settings, pods)
    return builder.results.of("wanted", known, lambda: _wanted(record, builder.settings, pods))


def _wanted(record: RunRecord, settings: Settings, pods: int | None) -> Wanted:
    document: dict[str, Any] = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": record.key.name, "namespace": record.key.namespace},
        "spec": record.spec,
    }
    run, problems = parsed(document)
    if run is not None and not problems:
        problems = cluster_problems(run, settings)
    if run is None or problems:
        return Wanted(None, "; ".join(str(problem) for problem in problems))
    sized = run if pods is None else run.model_copy(update={"spec": with_trainer_pods(run.spec, pods)})
    return Wanted(sized, "")


def frozen(builder: PlanBuilder) -> Rendering | None:
    """What the current attempt is applied from; None if its ControllerRevision is not there or of no use."""
    revision = builder.child(Kind.REVISION, builder.memory.revision) if builder.memory.revision else None
    if revision is None:
        return None
    try:
        return from_revision(msgspec.json.decode(revision.body))
    except ValueError:
        return None


def _rendered(builder: PlanBuilder, run: EchoRLRun) -> Rendering:
    record = builder.observed.run
    return render(
        run,
        uid=record.uid,
        namespace=record.key.namespace,
        generation=record.generation,
        settings=builder.settings,
    )


def _going_on(builder: PlanBuilder, rendering: Rendering, run: EchoRLRun) -> Rendering | None:
    """The attempt's rendering with an edit that applies live; None if its own spec cannot be rendered any more."""
    try:
        before = _rendered(builder, _frozen_run(builder, spec_of(rendering)))
    except ValueError:
        return None
    return amended(rendering, before, _rendered(builder, run))


def begin_attempt(
    builder: PlanBuilder, spec: EchoRLRunSpec, phase: Phase, reason: str, message: str, *, above: int = 0
) -> None:
    """The next attempt: status first, then its ControllerRevision; the rest follows from these.

    ``above``: an attempt that somebody else knows of; the new one is later than it, too.
    """
    record = builder.observed.run
    if not counts(builder.memory.gang_size, record.spec):
        builder.remember(gang_size=None)
    run = wanted(builder).run
    number = max(attempts.highest_attempt(builder), above) + 1
    # With a manifest that today's rules refuse, the run goes on as it was rendered last.
    rendering = frozen(builder) if run is None else _rendered(builder, run)
    if rendering is None:
        return
    source = run or _frozen_run(builder, spec)
    revision = to_revision(rendering, source, number, record.generation)
    builder.fenced()
    builder.memory = builder.memory.next_attempt(number, revision["metadata"]["name"], record.generation)
    if phase is Phase.RESTARTING and builder.restart is None:
        builder.restart = Restart(Role.TRAINER, _CAUSES.get(reason, Cause.UNKNOWN))
    builder.do(Create(revision))
    builder.say(phase, reason, message)
    builder.note(reason, f"attempt {number}: {message}", warning=phase is Phase.RESTARTING)


def _frozen_run(builder: PlanBuilder, spec: EchoRLRunSpec) -> EchoRLRun:
    record = builder.observed.run
    return EchoRLRun.model_validate(
        {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": {"name": record.key.name},
            "spec": spec.model_dump(mode="json", by_alias=True),
        }
    )


def restore(builder: PlanBuilder, run: EchoRLRun) -> None:
    """Somebody took away the ControllerRevision that status names, or an operator died before it made it."""
    record = builder.observed.run
    if record.generation != builder.memory.rendered_generation:
        # Nobody knows any more what the user has changed since: pods of this attempt may be of either manifest.
        why = "how the attempt was rendered is lost, and the manifest has changed since"
        begin_attempt(builder, run.spec, Phase.RESTARTING, "RevisionLost", why)
        return
    revision = to_revision(_rendered(builder, run), run, builder.memory.attempt, record.generation)
    builder.fenced(revision=revision["metadata"]["name"], rendered_generation=record.generation)
    builder.do(Create(revision, relabel=True))
    builder.say(builder.phase, "Rendering", f"attempt {builder.memory.attempt} is rendered anew")


def handle_edit(builder: PlanBuilder, rendering: Rendering, run: EchoRLRun) -> Outcome:
    """Carry out what the user changed since the attempt was rendered."""
    record = builder.observed.run
    if record.generation == builder.memory.rendered_generation:
        return Outcome.DONE
    effect, paths = effect_of_change(rendering.spec, applied(record.spec, builder.memory.gang_size))
    if effect is Effect.NONE:
        builder.remember(rendered_generation=record.generation)
        return Outcome.DONE
    listed = ", ".join(paths[:5]) + (" ..." if len(paths) > 5 else "")
    if effect >= Effect.NEW_ATTEMPT:
        begin_attempt(builder, run.spec, Phase.RESTARTING, "Edited", f"{listed} changed")
        return Outcome.DECIDED
    if (going_on := _going_on(builder, rendering, run)) is None:
        why = f"{listed} changed, and what the attempt was rendered from is refused now"
        begin_attempt(builder, run.spec, Phase.RESTARTING, "Edited", why)
        return Outcome.DECIDED
    revision = to_revision(going_on, run, builder.memory.attempt, record.generation)
    # Before status names it: one that no status names is a mere leftover, and an edit shows one write sooner.
    builder.do(Create(revision))
    builder.remember(revision=revision["metadata"]["name"], rendered_generation=record.generation)
    builder.say(builder.phase, "Edited", f"{listed} changed")
    builder.note("Edited", f"{listed} changed; no pod of the gang restarts")
    return Outcome.DECIDED
