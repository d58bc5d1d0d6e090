"""Rules of the engines as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.rules.defaults import default
from echorl_manifest.crd.validations import Validation, literal, validation, value_or
from echorl_manifest.models.inference import Inference
from echorl_manifest.rules.inference import OWN_NAMES, SHORT_ARGUMENT


def inference() -> Iterable[Validation]:
    """At ``spec.inference``."""
    gpus = value_or("gpusPerReplica", default(Inference, "gpusPerReplica"))
    available = f"({gpus} > 1 ? {gpus} : 1)"
    yield validation(
        f"!has(self.tensorParallel) || self.tensorParallel <= {available}",
        f"found {{self.tensorParallel}}; accepted: at most {{{available}}} (gpusPerReplica is {{{gpus}}})",
        field="tensorParallel",
    )


def extra_argument() -> Iterable[Validation]:
    """At an argument of ``vllm serve``."""
    name = "self.split('=')[0].split('.')[0].replace('_', '-').replace('--no-', '--')"
    yield validation(
        f"!self.startsWith('--') || !{literal(OWN_NAMES)}.contains('|' + {name})",
        'EchoRL sets this itself; found "{self}"; accepted: other arguments, with their whole names',
        reason="FieldValueForbidden",
    )
    yield validation(
        f"!self.matches({literal(SHORT_ARGUMENT)})",
        'found "{self}"; accepted: options by their long names (--attention-config for -ac)',
        reason="FieldValueForbidden",
    )
