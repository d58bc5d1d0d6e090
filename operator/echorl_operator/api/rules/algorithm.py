"""Rules of the algorithm, the run's and environments' own: batches, loss, advantage, filters."""

from collections.abc import Iterator

from echorl_operator.api.algorithm import Advantage, Algorithm, AlgorithmOverrides, Filter, Loss
from echorl_operator.api.rules.finding import Finding, finding, train_environments
from echorl_operator.api.rules.modes import group_size
from echorl_operator.api.run import EchoRLRunSpec

DEFAULT_GROUPS = 16
LOSS_SETTINGS = {
    "mask_low": ("dppo", "ipo"),
    "mask_high": ("dppo", "ipo"),
    "clip_low": ("grpo", "cispo"),
    "clip_high": ("grpo", "cispo"),
    "kl_tau": ("dppo", "ipo", "grpo", "cispo", "reinforce"),
}
"""Types of losses that have each setting."""


def batch_size(algorithm: Algorithm) -> int | None:
    """Episodes of a step, or None when a step is counted in tokens."""
    if algorithm.batch_size is None and algorithm.token_batch_size is None:
        return DEFAULT_GROUPS * group_size(algorithm)
    return algorithm.batch_size


def batch_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Sizes of batches that exclude each other, or do not go with groups."""
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


def algorithm_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Settings of losses, advantages and filters that their types do not have, or lack."""
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
    yield from difficulty_findings(path, easy_from, hard_to)


def difficulty_findings(path: str, easy_from: float, hard_to: float) -> Iterator[Finding]:
    """Bounds of easy and hard tasks the wrong way round; of a filter or a curriculum at ``path``."""
    if hard_to >= easy_from:
        accepted = f"a number below easyFrom ({easy_from:g})"
        yield finding(f"{path}.hardTo", hard_to, accepted, also=(f"{path}.easyFrom",))
