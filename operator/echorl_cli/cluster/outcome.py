"""What the operator would make of a manifest, asked of its own plan. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from echorl_core.names import Phase
from echorl_manifest.mutability import Change, Effect, changes
from echorl_operator.children import Rendering
from echorl_operator.children.target import Object
from echorl_operator.observed import decode
from echorl_operator.observed.memory import ENDED, Memory
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings

_MOST_PATHS = 10


@dataclass(frozen=True)
class Outcome:
    """What comes of a manifest that is carried out, or would be."""

    changes: tuple[Change, ...]
    """Where it differs from what the attempt was rendered from."""
    sentence: str


def outcome(
    run: RunRecord,
    revision: Object,
    rendering: Rendering,
    spec: Mapping[str, Any],
    *,
    settings: Settings,
    now: float,
) -> Outcome:
    """What a spec in place of the run's own does, where nothing else happens.

    Args:
        run: as it is stored.
        revision: ControllerRevision of its attempt.
        rendering: that this holds.
        spec: valid; the stored one, or one that would replace it.
        settings: of the installation.
        now: seconds since the epoch.
    """
    # The API server compares with what is stored, the operator with what the attempt was rendered from.
    refused = [change for change in changes(run.spec, spec) if change.effect is Effect.IMMUTABLE]
    if refused:
        return Outcome(tuple(refused), f"the API server refuses it: {_listed(refused)}")
    edits = tuple(changes(rendering.spec, spec))
    if not edits:
        return Outcome((), "it takes effect at the next attempt, or with the next edit")
    edited = replace(run, spec=dict(spec), generation=run.generation + 1)
    child = decode.child(Kind.REVISION, json.dumps(revision).encode())
    world = Observed(edited, pods=(), children=(child,), departed=(), role_state=None, refusal="", now=now)
    before, after = Memory.of(run.status), Memory.of(plan(world, settings, token="").status)
    return Outcome(edits, _sentence(before, after, suspends=spec.get("suspend") is True))


def _sentence(before: Memory, after: Memory, *, suspends: bool) -> str:
    if after.attempt > before.attempt:
        how = "the run goes on" if before.phase in (*ENDED, Phase.SUSPENDED) else "the gang restarts"
        return f"{how} as attempt {after.attempt}, from its last checkpoint"
    if after.phase is Phase.FAILED and before.phase is not Phase.FAILED:
        return "the run fails: its deadline is over"
    if before.phase in ENDED:
        return f"the run has ended as {before.phase}, and stays so"
    if suspends:
        return "the run is suspended: its pods end, and it takes effect when it goes on"
    return "it applies live: no pod of the gang restarts"


def words(edits: tuple[Change, ...]) -> str:
    """Paths with what a change of each does."""
    return _listed([f"{change.path} ({change.effect.words})" for change in edits])


def _listed(items: list[Any]) -> str:
    texts = [item.path if isinstance(item, Change) else str(item) for item in items]
    more = f" and {len(texts) - _MOST_PATHS} more" if len(texts) > _MOST_PATHS else ""
    return ", ".join(texts[:_MOST_PATHS]) + more
