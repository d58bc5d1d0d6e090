"""How large an elastic gang is: a pure function of what the scheduler finds for its pods.

    all pods have nodes <---- grows, saved before ----- spare pods look for the missing places
            |                                               ^
            +---- a pod waits ``afterSeconds`` ----> fewer pods, a new attempt

Nobody may look at nodes, so spare pods, made like the gang's own, look for places: a gang that trains is stopped only
for places that these hold. Each time that was of no use the next look comes later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.observed.memory import GangSize

HOLD_S = 300.0
"""How long spare pods keep places that are too few for what is wanted."""
LONGEST_PAUSE_S = 3600.0
"""Between two looks for places; ``afterSeconds``, if that is longer."""


@dataclass(frozen=True, slots=True)
class Places:
    """What the scheduler has found."""

    now: float
    """Seconds since the epoch."""
    gang: int
    """Pods of the gang that have a node."""
    waits_since: float | None = None
    """Since when a pod of the gang waits for nodes, in seconds since the epoch; None: none does."""
    spares: int = 0
    """Spare pods that have a node."""


def resized(size: GangSize, sizes: Sequence[int], places: Places, after_s: float) -> GangSize:
    """The size that the gang should have from now on: with other ``pods`` it goes on as a new attempt.

    Args:
        size: what was decided before.
        sizes: numbers of pods that the gang can train with, most first.
        places: of an attempt that was let through to the scheduler.
        after_s: ``elastic.afterSeconds``.
    """
    if places.waits_since is not None:
        fewer = _largest([pods for pods in sizes if pods < size.pods], places.gang)
        if fewer is None or places.now < places.waits_since + after_s:
            return size
        return _paused(replace(size, pods=fewer, since=int(places.now)), places.now, after_s)
    if size.grows or not places.spares:
        return replace(size, held_since=size.held_since if size.grows else 0)
    held = replace(size, held_since=size.held_since or int(places.now))
    if size.pods + places.spares < size.replicas and places.now < held.held_since + HOLD_S:
        return held
    more = _largest(sizes, size.pods + places.spares)
    return _paused(held, places.now, after_s) if more in (None, size.pods) else replace(held, grows=True)


def grown(size: GangSize, sizes: Sequence[int], spares: int, now: float, after_s: float) -> GangSize:
    """The size of the attempt that follows a gang's last checkpoint before it grows. ``spares``: that have a node."""
    pods = max(size.pods, _largest(sizes, size.pods + spares) or 0)
    larger = replace(size, pods=pods, since=int(now))
    return replace(larger, spares_from=int(now + _pause(size.tries, after_s)))


def spare_pods(size: GangSize | None, now: float) -> int:
    """How many spare pods there should be beside a gang that trains."""
    return 0 if size is None or now < size.spares_from else size.replicas - size.pods


def counts(size: GangSize | None, spec: Mapping[str, Any]) -> bool:
    """Whether a size rests on this manifest. ``spec``: as the API server holds it, or something that is no manifest."""
    trainer = spec.get("trainer")
    elastic = trainer.get("elastic") if isinstance(trainer, Mapping) else None
    if size is None or not isinstance(trainer, Mapping) or not isinstance(elastic, Mapping):
        return False
    least = elastic.get("minReplicas", 1)
    return isinstance(least, int) and least <= size.pods and bool(size.replicas == trainer.get("replicas", 1))


def applied(spec: Mapping[str, Any], size: GangSize | None) -> Mapping[str, Any]:
    """A manifest's spec with as many trainer pods as the attempt has."""
    if size is None or not counts(size, spec):
        return spec
    return {**spec, "trainer": {**spec["trainer"], "replicas": size.pods}}


def with_trainer_pods(spec: EchoRLRunSpec, pods: int) -> EchoRLRunSpec:
    """The spec with that many trainer pods; what it asks of ``elastic`` is not looked at again."""
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"replicas": pods})})


def _paused(size: GangSize, now: float, after_s: float) -> GangSize:
    return replace(size, tries=size.tries + 1, spares_from=int(now + _pause(size.tries, after_s)), held_since=0)


def _pause(tries: int, after_s: float) -> float:
    return min(after_s * 2.0 ** min(tries, 20), max(after_s, LONGEST_PAUSE_S))


def _largest(sizes: Sequence[int], pods: int) -> int | None:
    return max((size for size in sizes if size <= pods), default=None)
