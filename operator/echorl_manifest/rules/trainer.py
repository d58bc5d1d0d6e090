"""Rules of the trainer: how its ranks divide."""

from collections.abc import Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding


def gang_sizes(spec: EchoRLRunSpec) -> tuple[int, ...]:
    """Numbers of pods that the gang may train with, most first; ``replicas`` alone unless it is elastic.

    With fewer pods ``replicate``, ``context`` and ``expert`` stay as they are, and the model is split over fewer ranks.
    """
    trainer, elastic = spec.trainer, spec.trainer.elastic
    if elastic is None:
        return (trainer.replicas,)
    return tuple(pods for pods in range(trainer.replicas, elastic.min_replicas - 1, -1) if _divides(spec, pods))


def _divides(spec: EchoRLRunSpec, pods: int) -> bool:
    """Whether the ranks of so many pods are a whole number of shards."""
    parallel = spec.trainer.parallel
    ranks = pods * max(1, spec.trainer.gpus_per_replica)
    return all(ranks % (parallel.replicate * shared) == 0 for shared in (parallel.context, parallel.expert))


def elastic_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A fewest number of pods that the gang cannot train with."""
    trainer, elastic = spec.trainer, spec.trainer.elastic
    if elastic is None:
        return
    fits = elastic.min_replicas < trainer.replicas and _divides(spec, elastic.min_replicas)
    if not fits or trainer.parallel.fsdp != "auto":
        accepted = "fewer than replicas, with ranks that replicate x context and x expert divide, and fsdp auto"
        yield finding("spec.trainer.elastic.minReplicas", elastic.min_replicas, accepted, also=("spec.trainer",))


def rank_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Parallel dimensions whose product is not the number of ranks."""
    trainer, parallel = spec.trainer, spec.trainer.parallel
    sizes = ("spec.trainer.replicas", "spec.trainer.gpusPerReplica")
    ranks = trainer.replicas * max(1, trainer.gpus_per_replica)
    fixed = parallel.replicate * parallel.context
    path = "spec.trainer.parallel"
    if parallel.expert > 1 and ranks % (parallel.replicate * parallel.expert):
        accepted = "a divisor of the ranks of a copy of the model"
        yield finding(f"{path}.expert", parallel.expert, accepted, also=(*sizes, path))
    if parallel.fsdp == "auto" and ranks % fixed:
        key, value = ("replicate", parallel.replicate) if parallel.replicate > 1 else ("context", parallel.context)
        accepted = f"a divisor of the {ranks} ranks"
        yield finding(f"{path}.{key}", value, accepted, also=(*sizes, path))
    elif parallel.fsdp != "auto" and parallel.fsdp * fixed != ranks:
        reason = f"fsdp x replicate x context is {parallel.fsdp * fixed}, the trainer has {ranks} ranks"
        yield finding(
            f"{path}.fsdp", parallel.fsdp, "auto, or a value that makes them equal", reason, also=(*sizes, path)
        )
