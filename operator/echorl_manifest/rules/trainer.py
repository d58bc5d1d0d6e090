"""Rules of the trainer: how its ranks divide."""

from collections.abc import Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding


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
