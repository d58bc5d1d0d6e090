"""Children that nothing needs any more: what earlier renderings left behind.

Of ControllerRevisions stay the current one, the one that this attempt began with, and the last of the attempt before,
for people to compare; and the ConfigMaps of all three, and those that were made since the attempt began: its pods may
be of any of its renderings. Only what the run controls is ever deleted: a label alone proves nothing, and a
StatefulSet's own ControllerRevisions carry ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from echorl_core.names import Phase
from echorl_operator import names
from echorl_operator.children.rendering import Rendering
from echorl_operator.children.revision import from_revision
from echorl_operator.names import PodRole
from echorl_operator.observed.memory import ENDED
from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.plan.builder import PlanBuilder

_OF_THE_CURRENT_ALONE = frozenset({Kind.NETWORK_POLICY, Kind.DISRUPTION_BUDGET, Kind.DEPLOYMENT})
"""What is out of date of them still allows what the manifest does not, or keeps nodes busy."""
_OUTLIVE_ATTEMPTS = (PodRole.INFERENCE, PodRole.ENVIRONMENT)


def remove(builder: PlanBuilder, rendering: Rendering) -> None:
    """Delete them, in a pass that has nothing else to do and that finds no pod of an earlier attempt.

    Args:
        builder: of this pass, decided but for this.
        rendering: of the current attempt.
    """
    if builder.actions or builder.fence or not _is_settled(builder):
        return
    mine = [child for child in builder.observed.children if child.meta.owner_uid == builder.observed.run.uid]
    kept = _Kept.of(builder, mine)
    for child in (*kept.surplus, *_others(mine, rendering, kept)):
        builder.delete_child(child, "no attempt needs it any more")


@dataclass(frozen=True)
class _Kept:
    """ControllerRevisions by what becomes of them."""

    first: ChildRecord | None
    """The ControllerRevision that this attempt began with."""
    previous: ChildRecord | None
    """The last one of the newest attempt before."""
    surplus: tuple[ChildRecord, ...]

    @classmethod
    def of(cls, builder: PlanBuilder, mine: list[ChildRecord]) -> "_Kept":
        run = builder.observed.run.key.name
        orders = {child: _order(child.meta.name, run) for child in mine if child.kind is Kind.REVISION}
        current = _order(builder.memory.revision, run)
        older = sorted((child for child, order in orders.items() if (0, 0) < order < current), key=orders.__getitem__)
        of_this = [child for child in older if orders[child][0] == current[0]]
        before = [child for child in older if orders[child][0] < current[0]]
        first = of_this[0] if of_this else next((child for child, order in orders.items() if order == current), None)
        previous = before[-1] if before else None
        return cls(first, previous, tuple(child for child in older if child not in (first, previous)))


def _order(revision: str, run: str) -> tuple[int, int]:
    """Attempt and generation from a ControllerRevision's name; zeros if it is none of the run's."""
    attempt, _, generation = revision.removeprefix(f"{run}-").partition("-")
    return (int(attempt), int(generation)) if attempt.isdigit() and generation.isdigit() else (0, 0)


def _is_settled(builder: PlanBuilder) -> bool:
    """Whether every pod is of this attempt, and every engine of the newest template."""
    memory, living = builder.memory, [pod for pod in builder.observed.pods if pod.role is not None and not pod.ended]
    if memory.phase in (*ENDED, Phase.SUSPENDED):
        return not living
    engines = builder.child(Kind.DEPLOYMENT, names.inference(builder.observed.run.key.name))
    # Engines get the attempt's template when it is prepared; until then they need what an earlier one needed.
    if memory.prepared != memory.attempt or engines is None:
        return False
    rolled_out = engines.observed_generation >= engines.meta.generation
    of_others = [pod for pod in living if pod.role not in _OUTLIVE_ATTEMPTS and pod.attempt != memory.attempt]
    return rolled_out and engines.updated == engines.replicas == engines.desired and not of_others


def _others(mine: list[ChildRecord], rendering: Rendering, kept: _Kept) -> Iterator[ChildRecord]:
    current = _names(rendering) | {(Kind.DEPLOYMENT, names.inference(rendering.run))}
    gone = [child for child in mine if (child.kind, child.meta.name) not in current]
    yield from (child for child in gone if child.kind in _OF_THE_CURRENT_ALONE)
    if kept.first is None:
        return
    began = kept.first.meta.created_at
    config_maps = [child for child in gone if child.kind is Kind.CONFIG_MAP and child.meta.created_at < began]
    if config_maps and (needed := _needed(kept)) is not None:
        yield from (child for child in config_maps if (child.kind, child.meta.name) not in needed)


def _needed(kept: _Kept) -> set[tuple[Kind, str]] | None:
    """Children of the kept renderings; None if nobody can say, since this operator cannot read one."""
    revisions = [revision for revision in (kept.first, kept.previous) if revision is not None]
    try:
        return set().union(*(_names(from_revision(msgspec.json.decode(revision.body))) for revision in revisions))
    except ValueError:
        return None


def _names(rendering: Rendering) -> set[tuple[Kind, str]]:
    return {(Kind(body["kind"]), body["metadata"]["name"]) for body in rendering.common}
