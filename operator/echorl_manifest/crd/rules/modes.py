"""What modes ask for that is no row, as CEL: who plays the episodes of mode sft."""

from collections.abc import Iterable

from echorl_manifest.crd.validations import Validation, is_set, literal, refusal, validation, value_or
from echorl_manifest.rules import modes as words
from echorl_manifest.rules.environments import GIVEN
from echorl_manifest.rules.table import TEACHER


def sft() -> Iterable[Validation]:
    """At ``spec.algorithm.sft``."""
    condition = f"!('tool' in {value_or('trainRoles', ['assistant'])})"
    yield refusal(condition, "toolNames", "only where trainRoles has tool", found="a list")


def spec() -> Iterable[Validation]:
    """At ``spec``."""
    without = " && ".join(f"!({is_set(f'algorithm.{path}')})" for path in TEACHER)
    lonely = f"{value_or('algorithm.mode', 'rl')} == 'sft' && {without}"
    is_played = f"e.type.startsWith('builtin:') && !(e.type in {literal(GIVEN)})"
    played = f"{is_set('environments.train')} && self.environments.train.exists(e, {is_played})"
    yield validation(
        f"!({lonely} && {played})",
        f"{words.NEEDS_TEACHER}; found nothing; accepted: {words.TEACHERS_URL}",
        field="algorithm.teacher.url",
        reason="FieldValueRequired",
    )
    several = f"{is_set('algorithm.groupSize')} && self.algorithm.groupSize != 1"
    yield validation(
        f"!({lonely} && {several}) || {played}",
        f"{words.ONCE}; found {{self.algorithm.groupSize}}; accepted: 1",
        field="algorithm.groupSize",
    )
