"""Rules across fields as CEL, in the words of ``echorl validate``. Each stands where it can name the field.

In CEL a null is "not has()", and a default has to be spelled out. ``args``, ``kwargs`` and ``template`` cannot be seen.
A list's item cannot be named from above it: such an error names the list, and its message the item.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_operator.api.algorithm import Loss
from echorl_operator.api.base import ApiModel
from echorl_operator.api.inference import Inference
from echorl_operator.api.mode_rules import DEFAULT_GROUP
from echorl_operator.api.monitor_rules import WITHOUT_PROJECT
from echorl_operator.api.rules import (
    BUILTIN_ENVIRONMENTS,
    ECHO_ROLES,
    LOSS_SETTINGS,
    OWN_ENGINE_ARGUMENTS,
    loss_setting_reason,
)
from echorl_operator.api.run import Metadata
from echorl_operator.api.runtime import Checkpoint
from echorl_operator.api.schema import accepted_text, keys
from echorl_operator.api.trainer import Parallel, Trainer
from echorl_operator.crd import mode_rules
from echorl_operator.crd.validations import Validation, literal, refusal, validation, value_or

_IS_PATH = "self.name.matches('^[/.~]|/.*/')"


def _accepted(model: type[ApiModel], key: str) -> str:
    return accepted_text(keys(model)[key].rebuild_annotation())


def _default(model: type[ApiModel], key: str) -> Any:
    return keys(model)[key].get_default()


def _run() -> Iterable[Validation]:
    yield validation(
        "size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')",
        f'found "{{self.metadata.name}}"; accepted: {_accepted(Metadata, "name")}',
        field="metadata.name",
    )


def _spec() -> Iterable[Validation]:
    yield validation(
        "has(self.environments) && has(self.environments.train) && size(self.environments.train) > 0",
        "a run needs something to learn in; found an empty list; accepted: at least one environment",
        field="environments.train",
        reason="FieldValueRequired",
    )
    yield validation(
        "!(has(self.model.maxModelLen) && has(self.trainer) && has(self.trainer.seqLen))"
        " || self.trainer.seqLen >= self.model.maxModelLen",
        "a sample of full length must fit into one micro-batch; found {self.trainer.seqLen}; "
        "accepted: at least model.maxModelLen ({self.model.maxModelLen})",
        field="trainer.seqLen",
    )
    several = "has(self.trainer) && has(self.trainer.replicas) && self.trainer.replicas > 1"
    yield validation(
        "!(has(self.storage) && has(self.storage.accessMode) && self.storage.accessMode == 'ReadWriteOnce'"
        f" && {several})",
        'pods on several nodes share the volume; found "ReadWriteOnce"; accepted: ReadWriteMany',
        field="storage.accessMode",
    )
    yield from mode_rules.spec()
    mode, loss = value_or("algorithm.mode", "rl"), value_or("algorithm.loss.type", "dppo")
    renderer = value_or("model.renderer", "auto")
    with_echo = (
        "has(self.environments) && has(self.environments.train) && self.environments.train.exists(e, has(e.echo))"
    )
    names = "{self.environments.train.filter(e, has(e.echo)).map(e, e.name)}"
    for excluded, why in (
        (f"{mode} != 'rl'", f"mode {{{mode}}} has no ECHO term"),
        (f"{loss} == 'custom'", "a custom loss has no ECHO term"),
        (f"{renderer} == 'engine'", "renderer engine cannot tell whose a token is"),
    ):
        message = f"{why}; found an echo block in {names}; accepted: no echo block"
        yield validation(
            f"!({excluded} && {with_echo})", message, field="environments.train", reason="FieldValueForbidden"
        )


def _model() -> Iterable[Validation]:
    condition = f"{_IS_PATH} && {value_or('revision', 'main')} != 'main'"
    yield refusal(condition, "revision", "a path has no revision", found='"{self.revision}"')


def _algorithm() -> Iterable[Validation]:
    of_mode = f"({value_or('mode', 'rl')} == 'rl' ? {DEFAULT_GROUP['rl']} : {DEFAULT_GROUP['sft']})"
    group = f"(has(self.groupSize) ? self.groupSize : {of_mode})"
    yield validation(
        "!(has(self.batchSize) && has(self.tokenBatchSize))",
        "found {self.tokenBatchSize}; accepted: exactly one of batchSize and tokenBatchSize",
        field="tokenBatchSize",
        reason="FieldValueForbidden",
    )
    yield validation(
        f"!has(self.batchSize) || {group} < 1 || self.batchSize % {group} == 0",
        f"found {{self.batchSize}}; accepted: a multiple of groupSize ({{{group}}})",
        field="batchSize",
    )
    yield from mode_rules.algorithm()


def _custom(default: str) -> Iterable[Validation]:
    """Of loss, advantage and filters; ``default`` is the type of one that names none."""
    is_custom = f"{value_or('type', default)} == 'custom'"
    yield validation(
        f"!({is_custom}) || has(self.__import__)",
        "found nothing; accepted: an import path such as 'pkg.module:name'",
        field="import",
        reason="FieldValueRequired",
    )
    yield refusal(f"!({is_custom})", "import", "only for type custom", found='"{self.__import__}"')


def _difficulty() -> Iterable[Validation]:
    easy_from, hard_to = value_or("easyFrom", 1.0), value_or("hardTo", 0.0)
    yield validation(
        f"{hard_to} < {easy_from}",
        f"found {{{hard_to}}}; accepted: a number below easyFrom ({{{easy_from}}})",
        field="hardTo",
    )


def _filter() -> Iterable[Validation]:
    yield from _custom("")
    for key in ("easyFrom", "hardTo"):
        yield refusal(f"{value_or('type', '')} != 'difficulty'", key, "only for type difficulty")
    yield from _difficulty()


def _loss() -> Iterable[Validation]:
    yield from _custom("dppo")
    for name, types in LOSS_SETTINGS.items():
        key = str(Loss.model_fields[name].alias)
        other = f"!({value_or('type', 'dppo')} in {literal(types)})"
        yield refusal(other, key, loss_setting_reason(name))


def _advantage() -> Iterable[Validation]:
    yield from _custom("groupMean")
    not_rae = f"{value_or('type', 'groupMean')} != 'rae'"
    yield refusal(not_rae, "momentum", "only for type rae")
    yield refusal(not_rae, "order", "only for type rae", found='"{self.order}"')
    not_mean = f"{value_or('type', 'groupMean')} != 'groupMean'"
    yield refusal(not_mean, "lengthShaping", "only for type groupMean", found="a mapping")


def _length_shaping() -> Iterable[Validation]:
    for key in ("completionWeight", "environmentWeight"):
        yield refusal("has(self.by) && self.by != 'tokens'", key, "only for tokens")
    yield validation(
        f"{value_or('completionWeight', 1.0)} > 0.0 || {value_or('environmentWeight', 1.0)} > 0.0",
        "with both weights 0 every episode costs the same; found 0; accepted: a number above 0",
        field="completionWeight",
    )


def _environments() -> Iterable[Validation]:
    both = "has(self.train) && has(self.eval)"
    same = "self.eval.exists(e, self.train.exists(t, t.name == e.name))"
    names = "self.eval.filter(e, self.train.exists(t, t.name == e.name)).map(e, e.name)"
    yield validation(
        f"!({both}) || !{same}",
        f"a train environment has it already; found {{{names}}}; accepted: a name of its own",
        field="eval",
    )


def _environment() -> Iterable[Validation]:
    reserved = literal(RESERVED_ENVIRONMENT_NAME)
    yield validation(
        f"self.name != {reserved}",
        "'all' is reserved for sums over environments; found \"all\"; accepted: any other name",
        field="name",
    )
    built_in = [f"builtin:{name}" for name in BUILTIN_ENVIRONMENTS]
    yield validation(
        f"!self.type.startsWith('builtin:') || self.type in [{', '.join(map(literal, built_in))}]",
        f'no such environment; found "{{self.type}}"; accepted: {", ".join(built_in)} or import:<pkg.module:factory>',
        field="type",
    )


def _echo() -> Iterable[Validation]:
    yield validation(
        " || ".join(f"has(self.{role})" for role in ECHO_ROLES),
        "an echo block without a role trains nothing; found an empty mapping; "
        f"accepted: at least one of {', '.join(ECHO_ROLES)}",
        reason="FieldValueRequired",
    )


def _train_sampling() -> Iterable[Validation]:
    yield validation(
        "!has(self.temperature) || self.temperature != 0.0",
        "greedy tokens carry no usable logprob; found 0; accepted: a number above 0",
        field="temperature",
    )
    why = "the trainer's logprobs would not match the sampled ones"
    accepted = "1 (other values only in eval environments)"
    yield refusal("has(self.topP) && self.topP != 1.0", "topP", why, accepted)
    for key in ("topK", "presencePenalty", "frequencyPenalty", "repetitionPenalty"):
        yield refusal("", key, why, "no value (only in eval environments)")


def _trainer() -> Iterable[Validation]:
    gpus = value_or("gpusPerReplica", _default(Trainer, "gpusPerReplica"))
    ranks = f"{value_or('replicas', _default(Trainer, 'replicas'))} * ({gpus} > 1 ? {gpus} : 1)"
    replicate, context = (value_or(f"parallel.{key}", _default(Parallel, key)) for key in ("replicate", "context"))
    fixed = f"{replicate} * {context}"
    number = "has(self.parallel) && has(self.parallel.fsdp) && type(self.parallel.fsdp) == int"
    for key, value, which in (("replicate", replicate, "> 1"), ("context", context, "<= 1")):
        yield validation(
            f"{number} || !({replicate} {which}) || {fixed} < 1 || ({ranks}) % ({fixed}) == 0",
            f"found {{{value}}}; accepted: a divisor of the {{{ranks}}} ranks",
            field=f"parallel.{key}",
        )
    yield validation(
        f"!({number}) || int(self.parallel.fsdp) * {fixed} == {ranks}",
        f"fsdp x replicate x context is {{int(self.parallel.fsdp) * {fixed}}}, the trainer has {{{ranks}}} ranks; "
        "found {self.parallel.fsdp}; accepted: auto, or a value that makes them equal",
        field="parallel.fsdp",
    )


def _inference() -> Iterable[Validation]:
    gpus = value_or("gpusPerReplica", _default(Inference, "gpusPerReplica"))
    available = f"({gpus} > 1 ? {gpus} : 1)"
    yield validation(
        f"!has(self.tensorParallel) || self.tensorParallel <= {available}",
        f"found {{self.tensorParallel}}; accepted: at most {{{available}}} (gpusPerReplica is {{{gpus}}})",
        field="tensorParallel",
    )


def _extra_argument() -> Iterable[Validation]:
    own = "|".join(argument.replace("-", "[-_]") for argument in OWN_ENGINE_ARGUMENTS)
    yield validation(
        f"!self.matches({literal(f'^({own})([=[:space:]]|$)')})",
        'EchoRL sets this itself; found "{self}"; accepted: other arguments',
        reason="FieldValueForbidden",
    )


def _resume() -> Iterable[Validation]:
    policy = value_or("policy", "Auto")
    yield validation(
        f"{policy} != 'FromStep' || has(self.step)",
        "needed by FromStep; found nothing; accepted: the step of a committed checkpoint",
        field="step",
        reason="FieldValueRequired",
    )
    yield refusal(f"{policy} != 'FromStep'", "step", "only for policy FromStep")
    yield refusal(
        f"{policy} != 'Never' && {value_or('onExisting', 'Refuse')} != 'Refuse'",
        "onExisting",
        "only for policy Never",
        "Refuse",
        found='"{self.onExisting}"',
    )


def _checkpoint() -> Iterable[Validation]:
    interval = value_or("interval", _default(Checkpoint, "interval"))
    yield validation(
        f"!has(self.keepEvery) || {interval} < 1 || self.keepEvery % {interval} == 0",
        f"found {{self.keepEvery}}; accepted: a multiple of interval ({{{interval}}})",
        field="keepEvery",
    )


def _code() -> Iterable[Validation]:
    yield validation(
        "!(has(self.configMap) && has(self.path))",
        'found "{self.path}"; accepted: exactly one of configMap and path',
        field="path",
        reason="FieldValueForbidden",
    )


def _storage() -> Iterable[Validation]:
    for key in ("size", "storageClassName"):
        yield refusal("has(self.claimName)", key, "claimName names a claim that exists", found=f'"{{self.{key}}}"')


def _wandb() -> Iterable[Validation]:
    for key in ("entity", "baseUrl", "secretName"):
        yield refusal("!has(self.project)", key, WITHOUT_PROJECT, found=f'"{{self.{key}}}"')
    offline = "!has(self.project) && has(self.mode) && self.mode != 'online'"
    yield refusal(offline, "mode", WITHOUT_PROJECT, "online", found='"{self.mode}"')


_TABLE: Mapping[str, Iterable[Validation]] = {
    "": _run(),
    "spec.monitors.wandb": _wandb(),
    "spec": _spec(),
    "spec.model": _model(),
    "spec.algorithm": _algorithm(),
    "spec.algorithm.loss": _loss(),
    "spec.algorithm.sft": mode_rules.sft(),
    "spec.algorithm.advantage": _advantage(),
    "spec.algorithm.advantage.lengthShaping": _length_shaping(),
    "spec.algorithm.filters[]": _filter(),
    "spec.environments": _environments(),
    "spec.environments.train[]": _environment(),
    "spec.environments.train[].echo": _echo(),
    "spec.environments.train[].algorithm": mode_rules.overrides(),
    "spec.environments.train[].algorithm.loss": _loss(),
    "spec.environments.train[].algorithm.advantage": _advantage(),
    "spec.environments.train[].algorithm.advantage.lengthShaping": _length_shaping(),
    "spec.environments.train[].algorithm.filters[]": _filter(),
    "spec.environments.train[].curriculum": _difficulty(),
    "spec.environments.train[].sampling": _train_sampling(),
    "spec.environments.eval[]": (*_environment(), *mode_rules.evaluated()),
    "spec.trainer": _trainer(),
    "spec.inference": _inference(),
    "spec.inference.extraArgs[]": _extra_argument(),
    "spec.resume": _resume(),
    "spec.checkpoint": _checkpoint(),
    "spec.code": _code(),
    "spec.storage": _storage(),
}

RULES: Mapping[str, tuple[Validation, ...]] = {path: tuple(rules) for path, rules in _TABLE.items()}
"""By the place in the schema that they stand at."""
