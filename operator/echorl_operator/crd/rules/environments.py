"""Rules of environments as CEL: names and types, ECHO, sampling, and what only eval environments may have."""

from collections.abc import Iterable

from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_operator.api.rules.environments import BUILTIN_ENVIRONMENTS, ECHO_ROLES
from echorl_operator.crd.validations import Validation, literal, refusal, validation


def environments() -> Iterable[Validation]:
    """At ``spec.environments``."""
    both = "has(self.train) && has(self.eval)"
    same = "self.eval.exists(e, self.train.exists(t, t.name == e.name))"
    names = "self.eval.filter(e, self.train.exists(t, t.name == e.name)).map(e, e.name)"
    yield validation(
        f"!({both}) || !{same}",
        f"a train environment has it already; found {{{names}}}; accepted: a name of its own",
        field="eval",
    )


def environment() -> Iterable[Validation]:
    """At an environment of either kind."""
    reserved = literal(RESERVED_ENVIRONMENT_NAME)
    yield validation(
        f"self.name != {reserved}",
        "'all' is reserved for sums over environments; found \"all\"; accepted: any other name",
        field="name",
    )
    built_in = [f"builtin:{name}" for name in BUILTIN_ENVIRONMENTS]
    yield validation(
        f"!self.type.startsWith('builtin:') || self.type in [{', '.join(map(literal, built_in))}]",
        f'no such environment; found "{{self.type}}"; accepted: {", ".join(built_in)} or import:<pkg.module:factory>',
        field="type",
    )


def echo() -> Iterable[Validation]:
    """At the ECHO block of a train environment."""
    yield validation(
        " || ".join(f"has(self.{role})" for role in ECHO_ROLES),
        "an echo block without a role trains nothing; found an empty mapping; "
        f"accepted: at least one of {', '.join(ECHO_ROLES)}",
        reason="FieldValueRequired",
    )


def train_sampling() -> Iterable[Validation]:
    """At the sampling of a train environment."""
    yield validation(
        "!has(self.temperature) || self.temperature != 0.0",
        "greedy tokens carry no usable logprob; found 0; accepted: a number above 0",
        field="temperature",
    )
    why = "the trainer's logprobs would not match the sampled ones"
    accepted = "1 (other values only in eval environments)"
    yield refusal("has(self.topP) && self.topP != 1.0", "topP", why, accepted)
    for key in ("topK", "presencePenalty", "frequencyPenalty", "repetitionPenalty"):
        yield refusal("", key, why, "no value (only in eval environments)")
