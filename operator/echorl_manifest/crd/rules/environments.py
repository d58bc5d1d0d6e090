"""Rules of environments that are no rows, as CEL: names that are taken, built-ins that do not exist."""

from collections.abc import Iterable

from echorl_core.builtin_environments import BUILTIN_ENVIRONMENTS
from echorl_manifest.crd.validations import Validation, literal, validation


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
    built_in = [f"builtin:{name}" for name in BUILTIN_ENVIRONMENTS]
    yield validation(
        f"!self.type.startsWith('builtin:') || self.type in [{', '.join(map(literal, built_in))}]",
        f'no such environment; found "{{self.type}}"; accepted: {", ".join(built_in)} or import:<pkg.module:factory>',
        field="type",
    )
