"""Rules of the algorithm that are no rows: sizes of batches, and weights of which one must count."""

from collections.abc import Iterator

from echorl_manifest.models.algorithm import Advantage, Algorithm
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding, train_environments

DEFAULT_GROUPS = 16
DEFAULT_GROUP = {"rl": 16, "sft": 1, "opd": 1}
"""Episodes of one task by mode: without baselines there is nothing for them to share."""


def group_size(algorithm: Algorithm) -> int:
    """Episodes of one task."""
    return algorithm.group_size or DEFAULT_GROUP[algorithm.mode]


def batch_size(algorithm: Algorithm) -> int | None:
    """Episodes of a step, or None when a step is counted in tokens."""
    if algorithm.batch_size is None and algorithm.token_batch_size is None:
        return DEFAULT_GROUPS * group_size(algorithm)
    return algorithm.batch_size


def algorithm_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Batches that are no whole number of groups, episodes that all cost the same."""
    episodes, group = batch_size(spec.algorithm), group_size(spec.algorithm)
    if episodes is not None and episodes % group:
        also = ("spec.algorithm.groupSize",)
        yield finding("spec.algorithm.batchSize", episodes, f"a multiple of groupSize ({group})", also=also)
    yield from _costs("spec.algorithm", spec.algorithm.advantage)
    for path, environment in train_environments(spec):
        if environment.algorithm is not None and environment.algorithm.advantage is not None:
            yield from _costs(f"{path}.algorithm", environment.algorithm.advantage)


def _costs(path: str, advantage: Advantage) -> Iterator[Finding]:
    shaping, place = advantage.length_shaping, f"{path}.advantage.lengthShaping"
    if shaping is not None and (shaping.completion_weight, shaping.environment_weight) == (0, 0):
        reason = "with both weights 0 every episode costs the same"
        yield finding(f"{place}.completionWeight", 0, "a number above 0", reason, also=(f"{place}.by",))
