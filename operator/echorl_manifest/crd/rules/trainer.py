"""Rules of the trainer as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.rules.defaults import default
from echorl_manifest.crd.validations import Validation, is_set, validation, value_or
from echorl_manifest.models.trainer import Parallel, Trainer


def trainer() -> Iterable[Validation]:
    """At ``spec.trainer``."""
    gpus = value_or("gpusPerReplica", default(Trainer, "gpusPerReplica"))
    replicas, each = value_or("replicas", default(Trainer, "replicas")), f"({gpus} > 1 ? {gpus} : 1)"
    ranks = f"{replicas} * {each}"
    replicate, context = (value_or(f"parallel.{key}", default(Parallel, key)) for key in ("replicate", "context"))
    fixed = f"{replicate} * {context}"
    number = "has(self.parallel) && has(self.parallel.fsdp) && type(self.parallel.fsdp) == int"
    for key, others, size in (("replicate", f"{replicate} <= 1", fixed), ("context", f"{replicate} != 1", context)):
        yield validation(
            f"{number} || {others} || {size} < 1 || ({ranks}) % ({size}) == 0",
            f"found {{self.parallel.{key}}}; accepted: a divisor of the {{{ranks}}} ranks",
            field=f"parallel.{key}",
        )
    copies = value_or("replicate", default(Parallel, "replicate"), "self.parallel")
    split = f"{is_set('parallel.expert')} && self.parallel.expert > 1 && {copies} > 0"
    yield validation(
        f"!({split}) || ({ranks}) % ({copies} * self.parallel.expert) == 0",
        "found {self.parallel.expert}; accepted: a divisor of the ranks of a copy of the model",
        field="parallel.expert",
    )
    yield validation(
        f"!({number}) || int(self.parallel.fsdp) * {fixed} == {ranks}",
        f"fsdp x replicate x context is {{int(self.parallel.fsdp) * {fixed}}}, the trainer has {{{ranks}}} ranks; "
        "found {self.parallel.fsdp}; accepted: auto, or a value that makes them equal",
        field="parallel.fsdp",
    )
    fewest = "int(self.elastic.minReplicas)"
    left = f"{fewest} * {each}"
    yield validation(
        f"!has(self.elastic) || !({number}) && {fewest} < {replicas} && {left} % ({fixed}) == 0 && "
        f"(!({split}) || {left} % ({copies} * self.parallel.expert) == 0)",
        "found a gang that cannot shrink so; accepted: fewer than replicas, with ranks that replicate x context "
        "and x expert divide, and fsdp auto",
        field="elastic.minReplicas",
    )
