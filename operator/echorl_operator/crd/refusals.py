"""What nothing carries out yet, anywhere, as CEL: refused in the words of ``echorl validate``, never ignored."""

from collections.abc import Iterable, Mapping

from echorl_operator.api.problems import NOT_SUPPORTED
from echorl_operator.crd.validations import Validation, refusal, validation

_IS_BUILTIN_OR_IMPORT = "(self.type.startsWith('builtin:') || self.type.startsWith('import:'))"


def _other(key: str, supported: Iterable[str], what: str, accepted: str) -> Validation:
    """``key`` is a word that is none of the supported ones."""
    words = ", ".join(f"'{word}'" for word in supported)
    condition = f"has(self.{key}) && !(self.{key} in [{words}])"
    return refusal(condition, key, f"{NOT_SUPPORTED}: {what}", accepted, found=f'"{{self.{key}}}"')


def _environment() -> Iterable[Validation]:
    yield validation(
        _IS_BUILTIN_OR_IMPORT,
        f"{NOT_SUPPORTED}: environments of {{self.type.split(':')[0]}}; found \"{{self.type}}\"; "
        "accepted: builtin:<name> or import:<pkg.module:factory>",
        field="type",
        reason="FieldValueForbidden",
    )


def _set(keys_found: Mapping[str, str], what: str) -> Iterable[Validation]:
    """None of the keys may be set; the values are what messages say was found."""
    for key, found in keys_found.items():
        yield refusal("", key, f"{NOT_SUPPORTED}: {what}", found=found)


def _quoted(*names: str) -> dict[str, str]:
    return {name: f'"{{self.{name}}}"' for name in names}


def _penalties() -> Iterable[Validation]:
    names = ("presencePenalty", "frequencyPenalty", "repetitionPenalty")
    return _set({name: f"{{self.{name}}}" for name in names}, "penalties")


_TABLE: Mapping[str, Iterable[Validation]] = {
    "spec.environments.train[]": _environment(),
    "spec.environments.eval[]": _environment(),
    "spec.environments.eval[].sampling": _penalties(),
    "spec.trainer.parallel": (
        refusal("has(self.context) && self.context > 1", "context", f"{NOT_SUPPORTED}: context parallelism", "1"),
    ),
    "spec.weightTransfer": (_other("mode", ("http", "disk"), "weight transfer by NCCL", "http or disk"),),
    "spec.checkpoint": _set({"weightsOnlyEvery": "{self.weightsOnlyEvery}"}, "exports of weights alone"),
}

REFUSALS: Mapping[str, tuple[Validation, ...]] = {path: tuple(rules) for path, rules in _TABLE.items()}
"""By the place in the schema that they stand at."""
