"""Rules of the model, and of lengths that rest on it."""

from collections.abc import Iterator

from echorl_operator.api.model import is_path
from echorl_operator.api.rules.finding import Finding, finding
from echorl_operator.api.run import EchoRLRunSpec

DEFAULT_MAX_MODEL_LEN = 4096


def model_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A revision that means nothing, a sample that does not fit."""
    model, trainer = spec.model, spec.trainer
    if is_path(model.name) and model.revision != "main":
        reason = "a path has no revision"
        yield finding("spec.model.revision", model.revision, "no value", reason, also=("spec.model.name",))
    if model.max_model_len is not None and trainer.seq_len is not None and trainer.seq_len < model.max_model_len:
        accepted = f"at least model.maxModelLen ({model.max_model_len})"
        reason = "a sample of full length must fit into one micro-batch"
        yield finding("spec.trainer.seqLen", trainer.seq_len, accepted, reason, also=("spec.model.maxModelLen",))
