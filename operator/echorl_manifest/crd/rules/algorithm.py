"""Rules of the algorithm that are no rows, as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.validations import Validation, validation, value_or
from echorl_manifest.rules.algorithm import DEFAULT_GROUP


def algorithm() -> Iterable[Validation]:
    """At ``spec.algorithm``."""
    of_mode = f"({value_or('mode', 'rl')} == 'rl' ? {DEFAULT_GROUP['rl']} : {DEFAULT_GROUP['sft']})"
    group = f"(has(self.groupSize) ? self.groupSize : {of_mode})"
    yield validation(
        f"!has(self.batchSize) || {group} < 1 || self.batchSize % {group} == 0",
        f"found {{self.batchSize}}; accepted: a multiple of groupSize ({{{group}}})",
        field="batchSize",
    )


def length_shaping() -> Iterable[Validation]:
    """At the length shaping of an advantage."""
    yield validation(
        f"{value_or('completionWeight', 1.0)} > 0.0 || {value_or('environmentWeight', 1.0)} > 0.0",
        "with both weights 0 every episode costs the same; found 0; accepted: a number above 0",
        field="completionWeight",
    )
