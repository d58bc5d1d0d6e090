"""Rules of the trainer as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.rules.defaults import default
from echorl_manifest.crd.validations import Validation, validation, value_or
from echorl_manifest.models.trainer import Parallel, Trainer


def trainer() -> Iterable[Validation]:
    """At ``spec.trainer``."""
    gpus = value_or("gpusPerReplica", default(Trainer, "gpusPerReplica"))
    replicas, each = value_or("replicas", default(Trainer, "replicas")), f"({gpus} > 1 ? {gpus} : 1)"
    ranks = f"{replicas} * {each}"
    replicate, context = (value_or(f"parallel.{key}", default(Parallel, key)) for key in ("replicate", "context"))
    fixed = f"{replicate} * {context}"
    number = "has(self.parallel) && has(self.parallel.fsdp) && type(self.parallel.fsdp) == int"
    for key, value, which in (("replicate", replicate, "> 1"), ("context", context, "<= 1")):
        yield validation(
            f"{number} || !({replicate} {which}) || {fixed} < 1 || ({ranks}) % ({fixed}) == 0",
            f"found {{{value}}}; accepted: a divisor of the {{{ranks}}} ranks",
            field=f"parallel.{key}",
        )
    yield validation(
        f"!({number}) || int(self.parallel.fsdp) * {fixed} == {ranks}",
        f"fsdp x replicate x context is {{int(self.parallel.fsdp) * {fixed}}}, the trainer has {{{ranks}}} ranks; "
        "found {self.parallel.fsdp}; accepted: auto, or a value that makes them equal",
        field="parallel.fsdp",
    )
    fewest = "int(self.elastic.minReplicas)"
    yield validation(
        f"!has(self.elastic) || !({number}) && {fewest} < {replicas} && {fewest} * {each} % ({fixed}) == 0",
        "found a gang that cannot shrink so; accepted: fewer than replicas, with ranks that replicate x context "
        "divides and fsdp auto",
        field="elastic.minReplicas",
    )
