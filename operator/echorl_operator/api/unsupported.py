"""What a manifest may say but nothing carries out yet: refused, never ignored; and what one machine has no use for.

Some of it only a cluster carries out: ``echorl run`` refuses that, ``echorl validate`` and a cluster take it.
"""

from collections.abc import Iterator
from typing import Any

from echorl_operator.api.base import ApiModel
from echorl_operator.api.model import is_path
from echorl_operator.api.problems import NOT_SUPPORTED
from echorl_operator.api.rules.finding import Finding, eval_environments, finding, train_environments
from echorl_operator.api.run import EchoRLRunSpec


def _refused(path: str, value: object, what: str, accepted: str = "no value") -> Finding:
    return finding(path, value, accepted, f"{NOT_SUPPORTED}: {what}")


def _set_fields(part: ApiModel | None, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values of the fields that differ from their default."""
    if part is None:
        return
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if value != field.get_default(call_default_factory=True):
            yield f"{path}.{field.alias}", value


def _environments(spec: EchoRLRunSpec) -> Iterator[Finding]:
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        source = environment.type.partition(":")[0]
        if source not in {"builtin", "import"}:
            accepted = "builtin:<name> or import:<pkg.module:factory>"
            yield _refused(f"{path}.type", environment.type, f"environments of {source}", accepted)
    for path, evaluated in eval_environments(spec):
        for key in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            value = getattr(evaluated.sampling, key)
            if value is not None:
                alias = type(evaluated.sampling).model_fields[key].alias
                yield _refused(f"{path}.sampling.{alias}", value, "penalties")


def _trainer(spec: EchoRLRunSpec) -> Iterator[Finding]:
    trainer = spec.trainer
    if trainer.parallel.context > 1:
        yield _refused("spec.trainer.parallel.context", trainer.parallel.context, "context parallelism", "1")


def _runtime(spec: EchoRLRunSpec) -> Iterator[Finding]:
    if spec.weight_transfer.mode == "nccl":
        yield _refused("spec.weightTransfer.mode", "nccl", "weight transfer by NCCL", "http or disk")
    if spec.checkpoint.weights_only_every is not None:
        value = spec.checkpoint.weights_only_every
        yield _refused("spec.checkpoint.weightsOnlyEvery", value, "exports of weights alone")


def _on_one_machine(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What only a cluster carries out."""
    model = spec.model
    if model.token_secret_name is not None:
        yield _refused("spec.model.tokenSecretName", model.token_secret_name, "fetching gated models from the hub")
    if model.revision != "main" and not is_path(model.name):
        yield _refused("spec.model.revision", model.revision, "other revisions of a hub model", "main")
    if spec.code.config_map is not None:
        yield _refused(
            "spec.code.configMap", spec.code.config_map, "code from a ConfigMap", "no value; code.path works"
        )
    if spec.suspend:
        yield _refused("spec.suspend", spec.suspend, "suspended runs", "false")
    if spec.stall_policy.action != "Restart":
        action = spec.stall_policy.action
        yield _refused("spec.stallPolicy.action", action, f"action {action}", "Restart")


UNSUPPORTED = (_environments, _trainer, _runtime)


def unsupported_findings(spec: EchoRLRunSpec, *, local: bool = False) -> Iterator[Finding]:
    """What the manifest asks for and nothing carries out yet; with ``local`` also what one machine cannot do."""
    for check in UNSUPPORTED:
        yield from check(spec)
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
        **{f"spec.{role}": {"image", "template"} for role in ("trainer", "inference", "orchestrator")},
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
