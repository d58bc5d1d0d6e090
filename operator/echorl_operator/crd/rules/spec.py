"""Rules of the run, and of the spec between its parts, as CEL."""

from collections.abc import Iterable

from echorl_operator.api.run import Metadata
from echorl_operator.crd.rules import modes
from echorl_operator.crd.rules.defaults import accepted
from echorl_operator.crd.validations import Validation, validation, value_or


def run() -> Iterable[Validation]:
    """At the object itself."""
    yield validation(
        "size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
        f'found "{{self.metadata.name}}"; accepted: {accepted(Metadata, "name")}',
        field="metadata.name",
    )


def spec() -> Iterable[Validation]:
    """At ``spec``."""
    yield validation(
        "has(self.environments) && has(self.environments.train) && size(self.environments.train) > 0",
        "a run needs something to learn in; found an empty list; accepted: at least one environment",
        field="environments.train",
        reason="FieldValueRequired",
    )
    yield validation(
        "!(has(self.model.maxModelLen) && has(self.trainer) && has(self.trainer.seqLen))"
        " || self.trainer.seqLen >= self.model.maxModelLen",
        "a sample of full length must fit into one micro-batch; found {self.trainer.seqLen}; "
        "accepted: at least model.maxModelLen ({self.model.maxModelLen})",
        field="trainer.seqLen",
    )
    several = "has(self.trainer) && has(self.trainer.replicas) && self.trainer.replicas > 1"
    yield validation(
        "!(has(self.storage) && has(self.storage.accessMode) && self.storage.accessMode == 'ReadWriteOnce'"
        f" && {several})",
        'pods on several nodes share the volume; found "ReadWriteOnce"; accepted: ReadWriteMany',
        field="storage.accessMode",
    )
    yield from modes.spec()
    yield from _without_echo()


def _without_echo() -> Iterable[Validation]:
    """What excludes ECHO, as told at ``spec``."""
    mode, loss = value_or("algorithm.mode", "rl"), value_or("algorithm.loss.type", "dppo")
    renderer = value_or("model.renderer", "auto")
    with_echo = (
        "has(self.environments) && has(self.environments.train) && self.environments.train.exists(e, has(e.echo))"
    )
    names = "{self.environments.train.filter(e, has(e.echo)).map(e, e.name)}"
    for excluded, why in (
        (f"{mode} != 'rl'", f"mode {{{mode}}} has no ECHO term"),
        (f"{loss} == 'custom'", "a custom loss has no ECHO term"),
        (f"{renderer} == 'engine'", "renderer engine cannot tell whose a token is"),
    ):
        message = f"{why}; found an echo block in {names}; accepted: no echo block"
        yield validation(
            f"!({excluded} && {with_echo})", message, field="environments.train", reason="FieldValueForbidden"
        )
