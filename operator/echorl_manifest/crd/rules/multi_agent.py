"""Rules of multi-agent environments as CEL, in the words of ``echorl validate``."""

from collections.abc import Iterable

from echorl_core.builtin_environments import BUILTIN_MEMBERS
from echorl_manifest.crd.validations import Validation, literal, refusal, validation, value_or
from echorl_manifest.rules import multi_agent as words

_SEVERAL = literal([f"builtin:{name}" for name in words.MULTI_AGENT_BUILTINS])


def _is_multi(owner: str) -> str:
    """Whether an environment is known to be multi-agent."""
    seats = f"has({owner}.members) && size({owner}.members) > 0"
    return f"({owner}.type in {_SEVERAL} || (!{owner}.type.startsWith('builtin:') && {seats}))"


_IS_MULTI = _is_multi("e")
_IS_SINGLE = f"(e.type.startsWith('builtin:') && !(e.type in {_SEVERAL}))"
_HAS_DIFFICULTY = "filters.exists(f, f.type == 'difficulty')"


def spec() -> Iterable[Validation]:
    """At ``spec``."""
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


def algorithm() -> Iterable[Validation]:
    """At ``spec.algorithm``."""
    wrong = "f.type == 'zeroAdvantage' && has(f.stage) && f.stage == 'group' && (!has(f.enforce) || f.enforce)"
    yield validation(
        f"{value_or('advantage.type', 'groupMean')} != 'rae' || !has(self.filters) || !self.filters.exists(f, {wrong})",
        f'{words.LATE}; found "group"; accepted: batch',
        field="filters",
    )


def environment() -> Iterable[Validation]:
    """At an environment of either kind."""
    single = f"self.type.startsWith('builtin:') && !(self.type in {_SEVERAL})"
    yield refusal(f"{single} && size(self.members) > 0", "members", words.NO_MEMBERS, found="a mapping")
    for name, members in BUILTIN_MEMBERS.items():
        yield from _seats(f"self.type == 'builtin:{name}'", members)


def _seats(is_this: str, members: tuple[str, ...]) -> Iterable[Validation]:
    """Members of one built-in environment. What is walked are lists of known length, so that the cost has a bound."""
    known = literal(members)
    named = f"self.members.all(m, m in {known})"
    yield refusal(f"{is_this} && !{named}", "members", words.NO_SUCH, " and ".join(members), found="another name")
    yield refusal(
        f"{is_this} && {known}.all(m, m in self.dropMembers)",
        "dropMembers",
        words.NOBODY,
        words.not_all(members),
        found="all of them",
    )
    competes = "(has(self.dropMembers) ? !(m in self.dropMembers) : m != 'judge')"
    frozen = f"m in self.members && {value_or('policy', 'learner', owner='self.members[m]')} != 'learner'"
    yield refusal(
        f"{is_this} && {known}.exists_one(m, {competes}) && {known}.exists(m, {competes} && {frozen})",
        "members",
        words.NOBODY_ELSE,
        "learner",
        found="a frozen player",
    )


def trained() -> Iterable[Validation]:
    """At a train environment."""
    yield from environment()
    why = f"the environment is multi-agent: {words.NOT_HARD}"
    several = _is_multi("self")
    yield validation(
        f"!{several} || !has(self.algorithm) || !has(self.algorithm.filters) || !self.algorithm.{_HAS_DIFFICULTY}",
        f'{why}; found "difficulty"; accepted: {words.OTHER_FILTERS}',
        field="algorithm.filters",
    )
    yield refusal(several, "curriculum", why, found="a mapping")


def member() -> Iterable[Validation]:
    """At a member."""
    is_endpoint = f"{value_or('policy', 'learner')} == 'endpoint'"
    yield validation(
        f"!({is_endpoint}) || !has(self.url) || self.url.startsWith('http://') || self.url.startsWith('https://')",
        f'found "{{self.url}}"; accepted: {words.ENDPOINTS_URL}',
        field="url",
    )
