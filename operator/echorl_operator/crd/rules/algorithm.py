"""Rules of the algorithm, the run's and environments' own, as CEL."""

from collections.abc import Iterable

from echorl_operator.api.algorithm import Loss
from echorl_operator.api.rules.algorithm import LOSS_SETTINGS, loss_setting_reason
from echorl_operator.api.rules.modes import DEFAULT_GROUP
from echorl_operator.crd.rules import modes
from echorl_operator.crd.validations import Validation, literal, refusal, validation, value_or


def algorithm() -> Iterable[Validation]:
    """At ``spec.algorithm``."""
    of_mode = f"({value_or('mode', 'rl')} == 'rl' ? {DEFAULT_GROUP['rl']} : {DEFAULT_GROUP['sft']})"
    group = f"(has(self.groupSize) ? self.groupSize : {of_mode})"
    yield validation(
        "!(has(self.batchSize) && has(self.tokenBatchSize))",
        "found {self.tokenBatchSize}; accepted: exactly one of batchSize and tokenBatchSize",
        field="tokenBatchSize",
        reason="FieldValueForbidden",
    )
    yield validation(
        f"!has(self.batchSize) || {group} < 1 || self.batchSize % {group} == 0",
        f"found {{self.batchSize}}; accepted: a multiple of groupSize ({{{group}}})",
        field="batchSize",
    )
    yield from modes.algorithm()


def loss() -> Iterable[Validation]:
    """At a loss."""
    yield from _custom("dppo")
    for name, types in LOSS_SETTINGS.items():
        key = str(Loss.model_fields[name].alias)
        other = f"!({value_or('type', 'dppo')} in {literal(types)})"
        yield refusal(other, key, loss_setting_reason(name))


def advantage() -> Iterable[Validation]:
    """At an advantage."""
    yield from _custom("groupMean")
    not_rae = f"{value_or('type', 'groupMean')} != 'rae'"
    yield refusal(not_rae, "momentum", "only for type rae")
    yield refusal(not_rae, "order", "only for type rae", found='"{self.order}"')
    not_mean = f"{value_or('type', 'groupMean')} != 'groupMean'"
    yield refusal(not_mean, "lengthShaping", "only for type groupMean", found="a mapping")


def length_shaping() -> Iterable[Validation]:
    """At the length shaping of an advantage."""
    for key in ("completionWeight", "environmentWeight"):
        yield refusal("has(self.by) && self.by != 'tokens'", key, "only for tokens")
    yield validation(
        f"{value_or('completionWeight', 1.0)} > 0.0 || {value_or('environmentWeight', 1.0)} > 0.0",
        "with both weights 0 every episode costs the same; found 0; accepted: a number above 0",
        field="completionWeight",
    )


def one_filter() -> Iterable[Validation]:
    """At a filter."""
    yield from _custom("")
    for key in ("easyFrom", "hardTo"):
        yield refusal(f"{value_or('type', '')} != 'difficulty'", key, "only for type difficulty")
    yield from difficulty()


def difficulty() -> Iterable[Validation]:
    """At a filter or a curriculum: the bounds of easy and hard tasks."""
    easy_from, hard_to = value_or("easyFrom", 1.0), value_or("hardTo", 0.0)
    yield validation(
        f"{hard_to} < {easy_from}",
        f"found {{{hard_to}}}; accepted: a number below easyFrom ({{{easy_from}}})",
        field="hardTo",
    )


def _custom(default: str) -> Iterable[Validation]:
    """Of loss, advantage and filters; ``default`` is the type of one that names none."""
    is_custom = f"{value_or('type', default)} == 'custom'"
    yield validation(
        f"!({is_custom}) || has(self.__import__)",
        "found nothing; accepted: an import path such as 'pkg.module:name'",
        field="import",
        reason="FieldValueRequired",
    )
    yield refusal(f"!({is_custom})", "import", "only for type custom", found='"{self.__import__}"')
