"""Rules of resume, checkpoints, code and storage."""

from collections.abc import Iterator

from echorl_operator.api.rules.finding import Finding, finding
from echorl_operator.api.run import EchoRLRunSpec


def runtime_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Fields that mean nothing, or are missing, by what stands beside them."""
    resume, checkpoint, storage = spec.resume, spec.checkpoint, spec.storage
    policy = ("spec.resume.policy",)
    if resume.policy == "FromStep" and resume.step is None:
        yield finding("spec.resume.step", None, "the step of a committed checkpoint", "needed by FromStep", also=policy)
    if resume.policy != "FromStep" and resume.step is not None:
        yield finding("spec.resume.step", resume.step, "no value", "only for policy FromStep", also=policy)
    if resume.policy != "Never" and resume.on_existing != "Refuse":
        yield finding("spec.resume.onExisting", resume.on_existing, "Refuse", "only for policy Never", also=policy)
    if checkpoint.keep_every is not None and checkpoint.keep_every % checkpoint.interval:
        accepted = f"a multiple of interval ({checkpoint.interval})"
        also = ("spec.checkpoint.interval",)
        yield finding("spec.checkpoint.keepEvery", checkpoint.keep_every, accepted, also=also)
    if spec.code.config_map is not None and spec.code.path is not None:
        yield finding(
            "spec.code.path", spec.code.path, "exactly one of configMap and path", also=("spec.code.configMap",)
        )
    if storage.access_mode == "ReadWriteOnce" and spec.trainer.replicas > 1:
        reason = "pods on several nodes share the volume"
        also = ("spec.trainer.replicas",)
        yield finding("spec.storage.accessMode", storage.access_mode, "ReadWriteMany", reason, also=also)
    if storage.claim_name is not None:
        for key, value in (("size", storage.size), ("storageClassName", storage.storage_class_name)):
            if value is not None:
                reason = "claimName names a claim that exists"
                yield finding(f"spec.storage.{key}", value, "no value", reason, also=("spec.storage.claimName",))
