"""Rules of the model that are no rows."""

from collections.abc import Iterator

from echorl_manifest.models.model import is_path
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding

DEFAULT_MAX_MODEL_LEN = 4096


def model_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A revision that means nothing."""
    model = spec.model
    if is_path(model.name) and model.revision != "main":
        reason = "a path has no revision"
        yield finding("spec.model.revision", model.revision, "no value", reason, also=("spec.model.name",))
