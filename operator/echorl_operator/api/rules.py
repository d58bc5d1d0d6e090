"""Rules between fields. Each is a pure function of a typed spec; all are looked at."""

import re
from collections.abc import Iterator

from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_operator.api.algorithm import Advantage, Algorithm, AlgorithmOverrides, Filter, Loss
from echorl_operator.api.environments import Sampling
from echorl_operator.api.mode_rules import group_size, mode_findings
from echorl_operator.api.model import is_path
from echorl_operator.api.monitor_rules import monitor_findings
from echorl_operator.api.problems import Problem
from echorl_operator.api.rule import Finding, eval_environments, finding, train_environments
from echorl_operator.api.run import EchoRLRunSpec
from echorl_operator.api.schema import nearest

BUILTIN_ENVIRONMENTS = (
    "choice",
    "consultancy",
    "debate",
    "digits",
    "kuhn",
    "messages",
    "terminal",
    "terminal-demonstrations",
)
ECHO_ROLES = ("system", "user", "assistant", "tool", "warning")
DEFAULT_MAX_MODEL_LEN = 4096
DEFAULT_GROUPS = 16

LOSS_SETTINGS = {
    "mask_low": ("dppo", "ipo"),
    "mask_high": ("dppo", "ipo"),
    "clip_low": ("grpo", "cispo"),
    "clip_high": ("grpo", "cispo"),
    "kl_tau": ("dppo", "ipo", "grpo", "cispo", "reinforce"),
}
"""Types of losses that have each setting."""

# Arguments of `vllm serve` that follow from the manifest, or that captured tokens and logprobs rest on.
OWN_ENGINE_ARGUMENTS = (
    "--config",
    "--data-parallel-size",
    "--dtype",
    "--enable-lora",
    "--enable-scale-out",
    "--generation-config",
    "--host",
    "--logits-processors",
    "--logprobs-mode",
    "--lora-dtype",
    "--lora-modules",
    "--lora-target-modules",
    "--max-cpu-loras",
    "--max-logprobs",
    "--max-lora-rank",
    "--max-loras",
    "--max-model-len",
    "--middleware",
    "--model",
    "--override-generation-config",
    "--port",
    "--return-tokens-as-token-ids",
    "--served-model-name",
    "--speculative-config",
    "--tensor-parallel-size",
    "--tokenizer",
    "--worker-extension-cls",
    "-tp",
)


def batch_size(algorithm: Algorithm) -> int | None:
    """Episodes of a step, or None when a step is counted in tokens."""
    if algorithm.batch_size is None and algorithm.token_batch_size is None:
        return DEFAULT_GROUPS * group_size(algorithm)
    return algorithm.batch_size


def _model(spec: EchoRLRunSpec) -> Iterator[Finding]:
    model, trainer = spec.model, spec.trainer
    if is_path(model.name) and model.revision != "main":
        reason = "a path has no revision"
        yield finding("spec.model.revision", model.revision, "no value", reason, also=("spec.model.name",))
    if model.max_model_len is not None and trainer.seq_len is not None and trainer.seq_len < model.max_model_len:
        accepted = f"at least model.maxModelLen ({model.max_model_len})"
        reason = "a sample of full length must fit into one micro-batch"
        yield finding("spec.trainer.seqLen", trainer.seq_len, accepted, reason, also=("spec.model.maxModelLen",))


def _batches(spec: EchoRLRunSpec) -> Iterator[Finding]:
    algorithm = spec.algorithm
    path = "spec.algorithm.batchSize"
    if algorithm.batch_size is not None and algorithm.token_batch_size is not None:
        other = "spec.algorithm.tokenBatchSize"
        accepted = "exactly one of batchSize and tokenBatchSize"
        yield finding(other, algorithm.token_batch_size, accepted, also=(path,))
    episodes = batch_size(algorithm)
    if episodes is not None and episodes % group_size(algorithm):
        accepted = f"a multiple of groupSize ({group_size(algorithm)})"
        yield finding(path, episodes, accepted, also=("spec.algorithm.groupSize",))


def _custom(path: str, part: Loss | Advantage | Filter) -> Iterator[Finding]:
    if part.type == "custom" and part.import_path is None:
        yield finding(f"{path}.import", None, "an import path such as 'pkg.module:name'", also=(f"{path}.type",))
    if part.type != "custom" and part.import_path is not None:
        yield finding(f"{path}.import", part.import_path, "no value", "only for type custom", also=(f"{path}.type",))
    if part.type != "custom" and part.kwargs:
        yield finding(f"{path}.kwargs", part.kwargs, "no value", "only for type custom", also=(f"{path}.type",))


def _loss(path: str, loss: Loss) -> Iterator[Finding]:
    yield from _custom(path, loss)
    for name, types in LOSS_SETTINGS.items():
        value = getattr(loss, name)
        if value is not None and loss.type not in types:
            key = Loss.model_fields[name].alias
            yield finding(f"{path}.{key}", value, "no value", loss_setting_reason(name), also=(f"{path}.type",))


def loss_setting_reason(name: str) -> str:
    """Why a setting of losses is refused for other types."""
    *most, last = LOSS_SETTINGS[name]
    return f"only for {', '.join(most)} and {last}"


def _advantage(path: str, advantage: Advantage) -> Iterator[Finding]:
    kind = (f"{path}.type",)
    yield from _custom(path, advantage)
    if advantage.type != "rae":
        for key, value in (("momentum", advantage.momentum), ("order", advantage.order)):
            if value is not None:
                yield finding(f"{path}.{key}", value, "no value", "only for type rae", also=kind)
    shaping = advantage.length_shaping
    if shaping is None:
        return
    if advantage.type != "groupMean":
        found = shaping.model_dump(by_alias=True, exclude_none=True)
        yield finding(f"{path}.lengthShaping", found, "no value", "only for type groupMean", also=kind)
    by = f"{path}.lengthShaping.by"
    weights = {"completionWeight": shaping.completion_weight, "environmentWeight": shaping.environment_weight}
    for key, value in weights.items():
        if shaping.by != "tokens" and value is not None:
            yield finding(f"{path}.lengthShaping.{key}", value, "no value", "only for tokens", also=(by,))
    if list(weights.values()) == [0, 0]:
        reason = "with both weights 0 every episode costs the same"
        yield finding(f"{path}.lengthShaping.completionWeight", 0, "a number above 0", reason, also=(by,))


def _filter(path: str, rule: Filter) -> Iterator[Finding]:
    yield from _custom(path, rule)
    bounds = {"easyFrom": rule.easy_from, "hardTo": rule.hard_to}
    if rule.type != "difficulty":
        for key, value in bounds.items():
            if value is not None:
                yield finding(f"{path}.{key}", value, "no value", "only for type difficulty", also=(f"{path}.type",))
        return
    easy_from, hard_to = (
        default if value is None else value for value, default in zip(bounds.values(), (1.0, 0.0), strict=True)
    )
    yield from _difficulty(path, easy_from, hard_to)


def _difficulty(path: str, easy_from: float, hard_to: float) -> Iterator[Finding]:
    if hard_to >= easy_from:
        accepted = f"a number below easyFrom ({easy_from:g})"
        yield finding(f"{path}.hardTo", hard_to, accepted, also=(f"{path}.easyFrom",))


def _curricula(spec: EchoRLRunSpec) -> Iterator[Finding]:
    for path, environment in train_environments(spec):
        if (curriculum := environment.curriculum) is not None:
            yield from _difficulty(f"{path}.curriculum", curriculum.easy_from, curriculum.hard_to)


def _algorithm(spec: EchoRLRunSpec) -> Iterator[Finding]:
    yield from _parts("spec.algorithm", spec.algorithm)
    for path, environment in train_environments(spec):
        if environment.algorithm is not None:
            yield from _parts(f"{path}.algorithm", environment.algorithm)


def _parts(path: str, algorithm: Algorithm | AlgorithmOverrides) -> Iterator[Finding]:
    if algorithm.loss is not None:
        yield from _loss(f"{path}.loss", algorithm.loss)
    for index, rule in enumerate(algorithm.filters or ()):
        yield from _filter(f"{path}.filters[{index}]", rule)
    if algorithm.advantage is not None:
        yield from _advantage(f"{path}.advantage", algorithm.advantage)


def _names(spec: EchoRLRunSpec) -> Iterator[Finding]:
    if not spec.environments.train:
        path = "spec.environments.train"
        yield finding(path, [], "at least one environment", "a run needs something to learn in")
    seen: dict[str, str] = {}
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        name = environment.name
        if name == RESERVED_ENVIRONMENT_NAME:
            yield finding(f"{path}.name", name, "any other name", "'all' is reserved for sums over environments")
        elif name in seen:
            reason = f"{seen[name]} has it already"
            yield finding(f"{path}.name", name, "a name of its own", reason, also=(f"{seen[name]}.name",))
        seen.setdefault(name, path)
        source, _, builtin = environment.type.partition(":")
        if source == "builtin" and builtin not in BUILTIN_ENVIRONMENTS:
            meant = nearest(builtin, BUILTIN_ENVIRONMENTS)
            accepted = ", ".join(f"builtin:{known}" for known in BUILTIN_ENVIRONMENTS)
            reason = f"did you mean builtin:{meant}?" if meant else "no such environment"
            yield finding(f"{path}.type", environment.type, f"{accepted} or import:<pkg.module:factory>", reason)


def _echo(spec: EchoRLRunSpec) -> Iterator[Finding]:
    algorithm = spec.algorithm
    excluded = (
        (algorithm.mode != "rl", "spec.algorithm.mode", f"mode {algorithm.mode} has no ECHO term"),
        (algorithm.loss.type == "custom", "spec.algorithm.loss.type", "a custom loss has no ECHO term"),
        (spec.model.renderer == "engine", "spec.model.renderer", "renderer engine cannot tell whose a token is"),
    )
    for environment_path, environment in train_environments(spec):
        if environment.echo is None:
            continue
        path = f"{environment_path}.echo"
        if not any(getattr(environment.echo, role) for role in ECHO_ROLES):
            accepted = f"at least one of {', '.join(ECHO_ROLES)}"
            yield finding(path, {}, accepted, "an echo block without a role trains nothing")
        for applies, source, reason in excluded:
            if applies:
                yield Finding(Problem(path, "an echo block", "no echo block", reason), (source,))


def _sampling(spec: EchoRLRunSpec) -> Iterator[Finding]:
    for environment_path, environment in train_environments(spec):
        path, sampling = f"{environment_path}.sampling", environment.sampling
        if sampling.temperature == 0:
            reason = "greedy tokens carry no usable logprob"
            yield finding(f"{path}.temperature", sampling.temperature, "a number above 0", reason)
        reason = "the trainer's logprobs would not match the sampled ones"
        if sampling.top_p != 1:
            yield finding(f"{path}.topP", sampling.top_p, "1 (other values only in eval environments)", reason)
        for key, value in _reshaping(sampling):
            yield finding(f"{path}.{key}", value, "no value (only in eval environments)", reason)


def _reshaping(sampling: Sampling) -> Iterator[tuple[str, float]]:
    values = {
        "topK": sampling.top_k,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "repetitionPenalty": sampling.repetition_penalty,
    }
    yield from ((key, value) for key, value in values.items() if value is not None)


def _ranks(spec: EchoRLRunSpec) -> Iterator[Finding]:
    trainer, parallel = spec.trainer, spec.trainer.parallel
    sizes = ("spec.trainer.replicas", "spec.trainer.gpusPerReplica")
    ranks = trainer.replicas * max(1, trainer.gpus_per_replica)
    fixed = parallel.replicate * parallel.context
    path = "spec.trainer.parallel"
    if parallel.fsdp == "auto" and ranks % fixed:
        key, value = ("replicate", parallel.replicate) if parallel.replicate > 1 else ("context", parallel.context)
        accepted = f"a divisor of the {ranks} ranks"
        yield finding(f"{path}.{key}", value, accepted, also=(*sizes, path))
    elif parallel.fsdp != "auto" and parallel.fsdp * fixed != ranks:
        reason = f"fsdp x replicate x context is {parallel.fsdp * fixed}, the trainer has {ranks} ranks"
        yield finding(
            f"{path}.fsdp", parallel.fsdp, "auto, or a value that makes them equal", reason, also=(*sizes, path)
        )


def _engines(spec: EchoRLRunSpec) -> Iterator[Finding]:
    inference = spec.inference
    available = max(1, inference.gpus_per_replica)
    if inference.tensor_parallel is not None and inference.tensor_parallel > available:
        path = "spec.inference.tensorParallel"
        accepted = f"at most {available} (gpusPerReplica is {inference.gpus_per_replica})"
        yield finding(path, inference.tensor_parallel, accepted, also=("spec.inference.gpusPerReplica",))
    for index, argument in enumerate(inference.extra_args):
        flag = re.split(r"[=\s]", argument, maxsplit=1)[0].replace("_", "-")
        if flag in OWN_ENGINE_ARGUMENTS:
            yield finding(f"spec.inference.extraArgs[{index}]", argument, "other arguments", "EchoRL sets this itself")


def _runtime(spec: EchoRLRunSpec) -> Iterator[Finding]:
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


RULES = (
    _names,
    _model,
    _algorithm,
    mode_findings,
    _batches,
    _echo,
    _curricula,
    _sampling,
    _ranks,
    _engines,
    monitor_findings,
    _runtime,
)


def rule_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What every rule finds."""
    for rule in RULES:
        yield from rule(spec)
