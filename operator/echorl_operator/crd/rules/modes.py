"""What the modes sft and opd ask for, and what has no meaning in them, as CEL in the words of ``echorl validate``."""

from collections.abc import Iterable

from echorl_operator.api.rules import modes as rules
from echorl_operator.crd.validations import Validation, is_set, literal, refusal, validation, value_or

_MODE = value_or("algorithm.mode", "rl")
_TRAIN = "has(self.environments) && has(self.environments.train)"
_FOUND = {"loss": "a mapping", "advantage": "a mapping", "echo": "a mapping"}
_URL, _MODEL = "the base URL of an OpenAI-compatible server", "the name it serves"


def _is(mode: str, value: str = _MODE) -> str:
    return f"{value} == '{mode}'"


def algorithm() -> Iterable[Validation]:
    """At ``spec.algorithm``."""
    mode = value_or("mode", "rl")
    for name, parts in rules.UNUSED.items():
        for key, why in parts.items():
            yield refusal(_is(name, mode), key, why, found=_FOUND.get(key, ""))
    for name, (types, accepted, why) in rules.NOT_FILTERS.items():
        other = f"self.filters.filter(f, f.type in {literal(types)})"
        yield validation(
            f"!({_is(name, mode)} && has(self.filters) && size({other}) > 0)",
            f"{why}; found {{{other}.map(f, f.type)}}; accepted: {accepted}",
            field="filters",
            reason="FieldValueForbidden",
        )
    yield refusal(f"!({_is('sft', mode)})", "sft", "only for mode sft", found="a mapping")
    for key in ("url", "model", "secretName"):
        found = f'"{{self.teacher.{key}}}"'
        yield refusal(_is("rl", mode), f"teacher.{key}", rules.ONLY_TEACHERS, found=found, field=f"teacher.{key}")
    other = f"{_is('opd', mode)} && {value_or('loss.type', 'dppo')} != 'dppo'"
    yield refusal(other, "loss.type", rules.OPD_LOSS, found='"{self.loss.type}"')
    yield refusal(_is("opd", mode), "loss.maskHigh", rules.OPD_MASK)
    some = " || ".join(f"({is_set(f'teacher.{key}')})" for key in ("url", "model", "secretName"))
    for key, accepted in (("url", _URL), ("model", _MODEL)):
        yield validation(
            f"!({_is('opd', mode)} || {_is('sft', mode)} && ({some})) || ({is_set(f'teacher.{key}')})",
            f"mode {{{mode}}} has a teacher; found nothing; accepted: {accepted}",
            field=f"teacher.{key}",
            reason="FieldValueRequired",
        )


def sft() -> Iterable[Validation]:
    """At ``spec.algorithm.sft``."""
    condition = f"!('tool' in {value_or('trainRoles', ['assistant'])})"
    yield refusal(condition, "toolNames", "only where trainRoles has tool", found="a list")


def spec() -> Iterable[Validation]:
    """At ``spec``."""
    yield from _environments()
    yield from _own()
    renderer = value_or("model.renderer", "auto")
    yield validation(
        f"!({_is('sft')} && {renderer} == 'engine')",
        f'{rules.NOT_ATTRIBUTED}; found "engine"; accepted: auto, compact or a family',
        field="model.renderer",
    )
    evals = "has(self.environments) && has(self.environments.eval) && size(self.environments.eval) > 0"
    none = "has(self.inference) && has(self.inference.replicas) && self.inference.replicas == 0"
    yield validation(
        f"!({none} && (!({_is('sft')}) || {evals}))",
        f"{rules.NEEDS_ENGINES}; found 0; accepted: at least 1",
        field="inference.replicas",
    )


def _environments() -> Iterable[Validation]:
    given = literal(rules.GIVEN)
    wrong = f"self.environments.train.filter(e, e.type in {given})"
    yield validation(
        f"{_is('sft')} || !({_TRAIN}) || size({wrong}) == 0",
        f"{rules.GIVEN_TYPE}; found {{{wrong}.map(e, e.type)}}; accepted: {rules.PLAYED_TYPE}",
        field="environments.train",
    )
    is_played = f"e.type.startsWith('builtin:') && !(e.type in {given})"
    without = (
        "!(" + " || ".join(f"({is_set(f'algorithm.teacher.{key}')})" for key in ("url", "model", "secretName")) + ")"
    )
    played = f"self.environments.train.exists(e, {is_played})"
    yield validation(
        f"!({_is('sft')} && {without} && {_TRAIN} && {played})",
        f"{rules.NEEDS_TEACHER}; found nothing; accepted: {_URL}",
        field="algorithm.teacher.url",
        reason="FieldValueRequired",
    )
    several = "has(self.algorithm) && has(self.algorithm.groupSize) && self.algorithm.groupSize != 1"
    yield validation(
        f"!({_is('sft')} && {without} && {several}) || {_TRAIN} && {played}",
        "without a teacher every conversation is there once; found {self.algorithm.groupSize}; accepted: 1",
        field="algorithm.groupSize",
    )
    graded = "self.environments.train.filter(e, has(e.curriculum))"
    yield validation(
        f"!({_is('sft')} && {_TRAIN}) || size({graded}) == 0",
        f"{rules.CURRICULUM}; found a curriculum in {{{graded}.map(e, e.name)}}; accepted: no value",
        field="environments.train",
        reason="FieldValueForbidden",
    )
    temperature = "has(e.sampling) && has(e.sampling.temperature) && !(e.sampling.temperature in [0.0, 1.0])"
    heated = f"self.environments.train.filter(e, {temperature})"
    yield validation(
        f"!({_is('opd')} && {_TRAIN}) || size({heated}) == 0",
        f"{rules.OPD_TEMPERATURE}; found another one in {{{heated}.map(e, e.name)}}; accepted: 1",
        field="environments.train",
    )


def overrides() -> Iterable[Validation]:
    """At ``spec.environments.train[].algorithm``."""
    yield refusal("", "loss.aggregation", rules.ONE_DENOMINATOR, found='"{self.loss.aggregation}"')
    for key in ("loss", "advantage"):
        own = f"has(self.{key}) && has(self.{key}.type) && self.{key}.type == 'custom'"
        yield validation(
            f"!({own})",
            f'{rules.OWN_FUNCTIONS}; found "custom"; accepted: a built-in type',
            field=f"{key}.type",
            reason="FieldValueForbidden",
        )
    yield validation(
        "!has(self.filters) || !self.filters.exists(f, f.type == 'custom')",
        f'{rules.OWN_FUNCTIONS}; found "custom"; accepted: a built-in type',
        field="filters",
        reason="FieldValueForbidden",
    )


def _own() -> Iterable[Validation]:
    """What environments may have of their own in modes sft and opd; at ``spec``."""
    keys = ("loss", "rlWeight", "advantage", "groupSize", "filters")
    for mode in ("sft", "opd"):
        others = [key for key in keys if key not in rules.OVERRIDES[mode]]
        some = " || ".join(f"has(e.algorithm.{key})" for key in others)
        wrong = f"self.environments.train.filter(e, has(e.algorithm) && ({some}))"
        yield validation(
            f"!({_is(mode)} && {_TRAIN}) || size({wrong}) == 0",
            f"all environments share it in mode {mode}; "
            f"found one of {', '.join(others)} in {{{wrong}.map(e, e.name)}}; "
            f"accepted: one of {', '.join(rules.OVERRIDES[mode])}",
            field="environments.train",
            reason="FieldValueForbidden",
        )
    types, accepted, why = rules.NOT_FILTERS["opd"]
    rule = f"has(e.algorithm.filters) && e.algorithm.filters.exists(f, f.type in {literal(types)})"
    wrong = f"self.environments.train.filter(e, has(e.algorithm) && {rule})"
    yield validation(
        f"!({_is('opd')} && {_TRAIN}) || size({wrong}) == 0",
        f"{why}; found {', '.join(types)} in {{{wrong}.map(e, e.name)}}; accepted: {accepted}",
        field="environments.train",
        reason="FieldValueForbidden",
    )


def evaluated() -> Iterable[Validation]:
    """At ``spec.environments.eval[]``."""
    yield validation(
        f"!(self.type in {literal(rules.GIVEN)})",
        f'{rules.GIVEN_TYPE}; found "{{self.type}}"; accepted: {rules.PLAYED_TYPE}',
        field="type",
    )
