"""What a manifest may say but nothing carries out yet: refused, never ignored; and what one machine has no use for.

Some of it only a cluster carries out: ``echorl run`` refuses that, ``echorl validate`` and a cluster take it.
"""

from collections.abc import Iterator
from typing import Any

from echorl_manifest.models.base import ApiModel
from echorl_manifest.models.environments import OPENENV_IMAGE, TYPES
from echorl_manifest.models.model import is_path
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.problems import NOT_SUPPORTED
from echorl_manifest.rules.checks import row_findings
from echorl_manifest.rules.finding import Finding, eval_environments, finding, train_environments
from echorl_manifest.rules.row import Refused, like
from echorl_manifest.rules.table import ENVIRONMENTS


def _not_supported(place: str, field: str, what: str, accepted: str = "no value", **values: Any) -> Refused:
    return Refused((place,), field, (), f"{NOT_SUPPORTED}: {what}", accepted, **values)


IN_A_CLUSTER_ALONE = (
    _not_supported("spec.model", "tokenSecretName", "fetching gated models from the hub"),
    _not_supported("spec.code", "configMap", "code from a ConfigMap", "no value; code.path works"),
    _not_supported("spec", "suspend", "suspended runs", "false", but=(False,)),
    _not_supported("spec.sandboxes", "provider", "sandboxes in pods", "process", only=("pod", "agent-sandbox")),
    *(
        _not_supported("spec.stallPolicy", "action", f"action {action}", "Restart", only=(action,))
        for action in ("Fail", "Ignore")
    ),
    Refused(
        ENVIRONMENTS,
        "type",
        (like("type", OPENENV_IMAGE),),
        f"{NOT_SUPPORTED}: images of environments, which only a cluster runs",
        "openenv:http://<host>:<port>, of a server that you start yourself",
    ),
)
"""What one machine does not carry out."""
PLAYED = ("builtin", "verifiers", "openenv", "nemo-gym", "import")
"""Before the colon of environments' types that something plays."""


def _set_fields(part: ApiModel | None, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values of the fields that differ from their default."""
    if part is None:
        return
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if value != field.get_default(call_default_factory=True):
            yield f"{path}.{field.alias}", value


def _on_one_machine(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What only a cluster carries out."""
    yield from row_findings(IN_A_CLUSTER_ALONE, spec)
    model = spec.model
    if model.revision != "main" and not is_path(model.name):
        reason = f"{NOT_SUPPORTED}: other revisions of a hub model"
        yield finding("spec.model.revision", model.revision, "main", reason)


def unsupported_findings(spec: EchoRLRunSpec, *, local: bool = False) -> Iterator[Finding]:
    """What the manifest asks for and nothing carries out yet; with ``local`` also what one machine cannot do."""
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        source = environment.type.partition(":")[0]
        if source not in PLAYED:
            reason = f"{NOT_SUPPORTED}: environments of {source}"
            yield finding(f"{path}.type", environment.type, TYPES, reason)
    if local:
        yield from _on_one_machine(spec)


def refused_locally(spec: EchoRLRunSpec) -> list[str]:
    """Paths of fields that a cluster carries out and ``echorl run`` refuses."""
    return [finding.problem.path for finding in _on_one_machine(spec)]


def unused_locally(spec: EchoRLRunSpec) -> list[str]:
    """Paths of fields that are set and have no meaning on one machine; a local run names them in a notice."""
    cluster_only = {
        "spec": {"imagePullSecrets", "egress", "activeDeadlineSeconds", "ttlSecondsAfterFinished"},
        "spec.failurePolicy": {"forceDeleteOnNodeLoss"},
        "spec.algorithm.teacher": {"secretName"},
        "spec.monitors.wandb": {"secretName"},
        "spec.trainer": {"image", "template", "elastic", "network"},
        "spec.orchestrator": {"image", "template"},
        "spec.inference": {"image", "template", "autoscale", "network"},
    }
    parts = {
        "spec": spec,
        "spec.trainer": spec.trainer,
        "spec.inference": spec.inference,
        "spec.orchestrator": spec.orchestrator,
        "spec.failurePolicy": spec.failure_policy,
        "spec.algorithm.teacher": spec.algorithm.teacher,
        "spec.monitors.wandb": spec.monitors.wandb,
    }
    unused = [path for path, _ in _set_fields(spec.storage, "spec.storage")]
    for name, part in parts.items():
        wanted = {f"{name}.{key}" for key in cluster_only[name]}
        unused += [path for path, _ in _set_fields(part, name) if path in wanted]
    return sorted(unused)
