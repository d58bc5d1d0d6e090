"""Rules of resume, checkpoints, code and storage as CEL."""

from collections.abc import Iterable

from echorl_operator.api.runtime import Checkpoint
from echorl_operator.crd.rules.defaults import default
from echorl_operator.crd.validations import Validation, refusal, validation, value_or


def resume() -> Iterable[Validation]:
    """At ``spec.resume``."""
    policy = value_or("policy", "Auto")
    yield validation(
        f"{policy} != 'FromStep' || has(self.step)",
        "needed by FromStep; found nothing; accepted: the step of a committed checkpoint",
        field="step",
        reason="FieldValueRequired",
    )
    yield refusal(f"{policy} != 'FromStep'", "step", "only for policy FromStep")
    yield refusal(
        f"{policy} != 'Never' && {value_or('onExisting', 'Refuse')} != 'Refuse'",
        "onExisting",
        "only for policy Never",
        "Refuse",
        found='"{self.onExisting}"',
    )


def checkpoint() -> Iterable[Validation]:
    """At ``spec.checkpoint``."""
    interval = value_or("interval", default(Checkpoint, "interval"))
    yield validation(
        f"!has(self.keepEvery) || {interval} < 1 || self.keepEvery % {interval} == 0",
        f"found {{self.keepEvery}}; accepted: a multiple of interval ({{{interval}}})",
        field="keepEvery",
    )


def code() -> Iterable[Validation]:
    """At ``spec.code``."""
    yield validation(
        "!(has(self.configMap) && has(self.path))",
        'found "{self.path}"; accepted: exactly one of configMap and path',
        field="path",
        reason="FieldValueForbidden",
    )


def storage() -> Iterable[Validation]:
    """At ``spec.storage``."""
    for key in ("size", "storageClassName"):
        yield refusal("has(self.claimName)", key, "claimName names a claim that exists", found=f'"{{self.{key}}}"')
