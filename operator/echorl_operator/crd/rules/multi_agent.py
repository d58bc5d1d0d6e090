"""Rules of multi-agent environments as CEL, in the words of ``echorl validate``."""

from collections.abc import Iterable, Mapping

from echorl_operator.api.rules import multi_agent as words
from echorl_operator.crd.validations import Validation, literal, refusal, validation, value_or

_SEVERAL = literal([f"builtin:{name}" for name in words.MULTI_AGENT_BUILTINS])


def _is_multi(owner: str) -> str:
    """Whether an environment is known to be multi-agent."""
    seats = f"has({owner}.members) && size({owner}.members) > 0"
    return f"({owner}.type in {_SEVERAL} || (!{owner}.type.startsWith('builtin:') && {seats}))"


_IS_MULTI = _is_multi("e")
_IS_SINGLE = f"(e.type.startsWith('builtin:') && !(e.type in {_SEVERAL}))"
_HAS_DIFFICULTY = "filters.exists(f, f.type == 'difficulty')"


def _spec() -> Iterable[Validation]:
    general = value_or("algorithm.advantage.type", "groupMean")
    own = value_or("algorithm.advantage.type", "", owner="e")
    advantage = f"({own} != '' ? {own} : {general})"
    trained = "has(self.environments) && has(self.environments.train)"
    mode = value_or("algorithm.mode", "rl")
    multi = f"{{self.environments.train.filter(e, {_IS_MULTI}).map(e, e.type)}}"
    yield validation(
        f"{mode} == 'rl' || !({trained}) || !self.environments.train.exists(e, {_IS_MULTI})",
        f"{words.ONLY_RL}; found {multi}; accepted: {words.ONE_AGENT}",
        field="environments.train",
    )
    for wrong, kind, accepted in (
        (f"{_IS_MULTI} && {advantage} != 'rae'", "is multi-agent", "rae"),
        (f"{_IS_SINGLE} && {advantage} == 'rae'", "is not multi-agent", words.OTHER_ADVANTAGES),
    ):
        names = f"{{self.environments.train.filter(e, {wrong}).map(e, e.name)}}"
        yield validation(
            f"{mode} != 'rl' || !({trained}) || !self.environments.train.exists(e, {wrong})",
            f'environment {names} {kind}; found "{{{general}}}"; accepted: {accepted}',
            field="algorithm.advantage.type",
        )
    general_filters = f"has(self.algorithm) && has(self.algorithm.filters) && self.algorithm.{_HAS_DIFFICULTY}"
    wrong = f"{_IS_MULTI} && !(has(e.algorithm) && has(e.algorithm.filters))"
    names = f"{{self.environments.train.filter(e, {wrong}).map(e, e.name)}}"
    yield validation(
        f"!({general_filters}) || !({trained}) || !self.environments.train.exists(e, {wrong})",
        f'environment {names} is multi-agent: {words.NOT_HARD}; found "difficulty"; accepted: {words.OTHER_FILTERS}',
        field="algorithm.filters",
    )
    for kind in ("train", "eval"):
        based = "e.members.exists(m, has(e.members[m].policy) && e.members[m].policy == 'base')"
        wrong = f"has(e.members) && {based}"
        names = f"{{self.environments.{kind}.filter(e, {wrong}).map(e, e.name)}}"
        yield validation(
            f"{value_or('model.renderer', 'auto')} != 'engine' || !has(self.environments)"
            f" || !has(self.environments.{kind}) || !self.environments.{kind}.exists(e, {wrong})",
            f'{words.RENDERED}; found "base" in {names}; accepted: learner or endpoint',
            field=f"environments.{kind}",
        )
        yield validation(
            f"has(self.model.lora) || !has(self.environments) || !has(self.environments.{kind})"
            f" || !self.environments.{kind}.exists(e, {wrong})",
            f'{words.NO_BASE}; found "base" in {names}; accepted: learner or endpoint',
            field=f"environments.{kind}",
        )


def _algorithm() -> Iterable[Validation]:
    wrong = "f.type == 'zeroAdvantage' && has(f.stage) && f.stage == 'group' && (!has(f.enforce) || f.enforce)"
    yield validation(
        f"{value_or('advantage.type', 'groupMean')} != 'rae' || !has(self.filters) || !self.filters.exists(f, {wrong})",
        f'{words.LATE}; found "group"; accepted: batch',
        field="filters",
    )


def _environment() -> Iterable[Validation]:
    single = f"self.type.startsWith('builtin:') && !(self.type in {_SEVERAL})"
    yield refusal(f"{single} && size(self.members) > 0", "members", words.NO_MEMBERS, found="a mapping")


def _trained() -> Iterable[Validation]:
    yield from _environment()
    why = f"the environment is multi-agent: {words.NOT_HARD}"
    several = _is_multi("self")
    yield validation(
        f"!{several} || !has(self.algorithm) || !has(self.algorithm.filters) || !self.algorithm.{_HAS_DIFFICULTY}",
        f'{why}; found "difficulty"; accepted: {words.OTHER_FILTERS}',
        field="algorithm.filters",
    )
    yield refusal(several, "curriculum", why, found="a mapping")


def _member() -> Iterable[Validation]:
    is_endpoint = f"{value_or('policy', 'learner')} == 'endpoint'"
    for key in ("url", "model", "secretName"):
        yield refusal(f"!({is_endpoint})", key, words.ONLY_ENDPOINT, found=f'"{{self.{key}}}"')
    for key, accepted in (
        ("url", "a URL that begins with http:// or https://"),
        ("model", "the model's name at the endpoint"),
    ):
        yield validation(
            f"!({is_endpoint}) || has(self.{key})",
            f"{words.NEEDED}; found nothing; accepted: {accepted}",
            field=key,
            reason="FieldValueRequired",
        )
    yield validation(
        f"!({is_endpoint}) || !has(self.url) || self.url.startsWith('http://') || self.url.startsWith('https://')",
        'found "{self.url}"; accepted: a URL that begins with http:// or https://',
        field="url",
    )


_TABLE: Mapping[str, Iterable[Validation]] = {
    "spec": _spec(),
    "spec.algorithm": _algorithm(),
    "spec.environments.train[]": _trained(),
    "spec.environments.train[].members{}": _member(),
    "spec.environments.eval[]": _environment(),
    "spec.environments.eval[].members{}": _member(),
}

MULTI_AGENT: Mapping[str, tuple[Validation, ...]] = {path: tuple(rules) for path, rules in _TABLE.items()}
"""By the place in the schema that they stand at."""
