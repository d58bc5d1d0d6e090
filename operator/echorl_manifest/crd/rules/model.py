"""Rules of the model as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.validations import Validation, refusal, value_or

_IS_PATH = "self.name.matches('^[/.~]|/.*/')"


def model() -> Iterable[Validation]:
    """At ``spec.model``."""
    condition = f"{_IS_PATH} && {value_or('revision', 'main')} != 'main'"
    yield refusal(condition, "revision", "a path has no revision", found='"{self.revision}"')
