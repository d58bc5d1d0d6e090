"""Rules across fields as CEL, by the part of the spec, in the words of ``echorl validate``.

Each stands where it can name the field. In CEL a null is "not has()", and a default has to be spelled out. ``args``,
``kwargs`` and ``template`` cannot be seen. A list's item cannot be named from above it: such an error names the list,
and its message the item.
"""

from collections.abc import Iterable, Mapping

from echorl_operator.crd.rules import (
    algorithm,
    environments,
    inference,
    model,
    modes,
    monitors,
    runtime,
    spec,
    trainer,
)
from echorl_operator.crd.validations import Validation

_TABLE: Mapping[str, Iterable[Validation]] = {
    "": spec.run(),
    "spec.monitors.wandb": monitors.wandb(),
    "spec": spec.spec(),
    "spec.model": model.model(),
    "spec.algorithm": algorithm.algorithm(),
    "spec.algorithm.loss": algorithm.loss(),
    "spec.algorithm.sft": modes.sft(),
    "spec.algorithm.advantage": algorithm.advantage(),
    "spec.algorithm.advantage.lengthShaping": algorithm.length_shaping(),
    "spec.algorithm.filters[]": algorithm.one_filter(),
    "spec.environments": environments.environments(),
    "spec.environments.train[]": environments.environment(),
    "spec.environments.train[].echo": environments.echo(),
    "spec.environments.train[].algorithm": modes.overrides(),
    "spec.environments.train[].algorithm.loss": algorithm.loss(),
    "spec.environments.train[].algorithm.advantage": algorithm.advantage(),
    "spec.environments.train[].algorithm.advantage.lengthShaping": algorithm.length_shaping(),
    "spec.environments.train[].algorithm.filters[]": algorithm.one_filter(),
    "spec.environments.train[].curriculum": algorithm.difficulty(),
    "spec.environments.train[].sampling": environments.train_sampling(),
    "spec.environments.eval[]": (*environments.environment(), *modes.evaluated()),
    "spec.trainer": trainer.trainer(),
    "spec.inference": inference.inference(),
    "spec.inference.extraArgs[]": inference.extra_argument(),
    "spec.resume": runtime.resume(),
    "spec.checkpoint": runtime.checkpoint(),
    "spec.code": runtime.code(),
    "spec.storage": runtime.storage(),
}

RULES: Mapping[str, tuple[Validation, ...]] = {path: tuple(rules) for path, rules in _TABLE.items()}
"""By the place in the schema that they stand at."""
