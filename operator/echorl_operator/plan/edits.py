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
from echorl_operator.children.assembly import cluster_problems, render
from echorl_operator.children.rendering import Rendering
from echorl_operator.children.revision import from_revision, to_revision
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunRecord
from echorl_operator.plan import attempts
from echorl_operator.plan.actions import Create
from echorl_operator.plan.builder import Draft
from echorl_operator.settings import Settings

_CAUSES = {"Edited": Cause.EDITED, "RevisionLost": Cause.EDITED, "NodeLost": Cause.NODE_LOST}
"""By the reason that an attempt begins for; of a death the cause is known before."""


@dataclass(frozen=True)
class Wanted:
    """The manifest as it stands: the run if it can be carried out, else why not."""

    run: EchoRLRun | None
    problems: str

    @property
    def spec(self) -> EchoRLRunSpec | None:
        """Its spec; None if it has problems."""
        return None if self.run is None else self.run.spec


def wanted(draft: Draft) -> Wanted:
    """The run's manifest, validated by today's rules."""
    record = draft.observed.run
    return draft.memo.of("wanted", (record.spec, draft.settings), lambda: _wanted(record, draft.settings))


def _wanted(record: RunRecord, settings: Settings) -> Wanted:
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
    return Wanted(run, "")


def frozen(draft: Draft) -> Rendering | None:
    """What the current attempt is applied from; None if its ControllerRevision is not there or of no use."""
    revision = draft.child(Kind.REVISION, draft.memory.revision) if draft.memory.revision else None
    if revision is None:
        return None
    try:
        return from_revision(msgspec.json.decode(revision.body))
    except ValueError:
        return None


def _rendered(draft: Draft, run: EchoRLRun) -> Rendering:
    record = draft.observed.run
    return render(
        run,
        uid=record.uid,
        namespace=record.key.namespace,
        generation=record.generation,
        settings=draft.settings,
    )


def begin_attempt(
    draft: Draft, spec: EchoRLRunSpec, phase: Phase, reason: str, message: str, *, above: int = 0
) -> None:
    """The next attempt: status first, then its ControllerRevision; the rest follows from these.

    ``above``: an attempt that somebody else knows of; the new one is later than it, too.
    """
    run = wanted(draft).run
    record = draft.observed.run
    number = max(attempts.highest_attempt(draft), above) + 1
    # With a manifest that today's rules refuse, the run goes on as it was rendered last.
    rendering = frozen(draft) if run is None else _rendered(draft, run)
    if rendering is None:
        return
    source = run or _frozen_run(draft, spec)
    revision = to_revision(rendering, source, number, record.generation)
    draft.fenced()
    draft.memory = draft.memory.next_attempt(number, revision["metadata"]["name"], record.generation)
    if phase is Phase.RESTARTING and draft.restart is None:
        draft.restart = Restart(Role.TRAINER, _CAUSES.get(reason, Cause.UNKNOWN))
    draft.do(Create(revision))
    draft.say(phase, reason, message)
    draft.note(reason, f"attempt {number}: {message}", warning=phase is Phase.RESTARTING)


def _frozen_run(draft: Draft, spec: EchoRLRunSpec) -> EchoRLRun:
    record = draft.observed.run
    return EchoRLRun.model_validate(
        {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": {"name": record.key.name},
            "spec": spec.model_dump(mode="json", by_alias=True),
        }
    )


def restore(draft: Draft, run: EchoRLRun) -> None:
    """Somebody took away the ControllerRevision that status names, or an operator died before it made it."""
    record = draft.observed.run
    if record.generation != draft.memory.observed_generation:
        # Nobody knows any more what the user has changed since: pods of this attempt may be of either manifest.
        why = "how the attempt was rendered is lost, and the manifest has changed since"
        begin_attempt(draft, run.spec, Phase.RESTARTING, "RevisionLost", why)
        return
    revision = to_revision(_rendered(draft, run), run, draft.memory.attempt, record.generation)
    draft.fenced(revision=revision["metadata"]["name"], observed_generation=record.generation)
    draft.do(Create(revision, relabel=True))
    draft.say(draft.phase, "Rendering", f"attempt {draft.memory.attempt} is rendered anew")


def edited(draft: Draft, rendering: Rendering, run: EchoRLRun) -> bool:
    """Carry out what the user changed since the attempt was rendered. True if this pass must do nothing else."""
    record = draft.observed.run
    if record.generation == draft.memory.observed_generation:
        return False
    effect, paths = effect_of_change(rendering.spec, record.spec)
    if effect is Effect.NONE:
        draft.remember(observed_generation=record.generation)
        return False
    listed = ", ".join(paths[:5]) + (" ..." if len(paths) > 5 else "")
    if effect >= Effect.NEW_ATTEMPT:
        begin_attempt(draft, run.spec, Phase.RESTARTING, "Edited", f"{listed} changed")
        return True
    revision = to_revision(_rendered(draft, run), run, draft.memory.attempt, record.generation)
    # Before status names it: one that no status names is a mere leftover, and an edit shows one write sooner.
    draft.do(Create(revision))
    draft.remember(revision=revision["metadata"]["name"], observed_generation=record.generation)
    draft.say(draft.phase, "Edited", f"{listed} changed")
    draft.note("Edited", f"{listed} changed; no pod of the gang restarts")
    return True
