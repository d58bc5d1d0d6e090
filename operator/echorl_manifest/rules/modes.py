"""What modes ask for that is no row: who plays the episodes of mode sft. Which engines a run needs by its mode."""

from collections.abc import Iterator

from echorl_manifest.models.environments import Environment
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.environments import GIVEN
from echorl_manifest.rules.finding import Finding, finding, train_environments

NEEDS_TEACHER = "mode sft plays episodes by a teacher; environments of given conversations need none"
TEACHERS_URL = "the base URL of an OpenAI-compatible server"
ONCE = "without a teacher every conversation is there once"


def num_engines(spec: EchoRLRunSpec) -> int:
    """How many engines the run needs: none where nothing is sampled."""
    return spec.inference.replicas if samples(spec) else 0


def samples(spec: EchoRLRunSpec) -> bool:
    """Whether engines are asked for tokens."""
    return spec.algorithm.mode != "sft" or bool(spec.environments.eval)


def mode_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What mode sft lacks without a teacher, and tools of which no role is a target."""
    algorithm, mode = spec.algorithm, "spec.algorithm.mode"
    sft, teacher = algorithm.sft, algorithm.teacher
    if sft is not None and sft.tool_names is not None and "tool" not in sft.train_roles:
        path, rests_on = "spec.algorithm.sft.toolNames", ("spec.algorithm.sft.trainRoles",)
        yield finding(path, sft.tool_names, "no value", "only where trainRoles has tool", also=rests_on)
    if algorithm.mode != "sft" or (teacher is not None and teacher.model_dump(exclude_none=True)):
        return
    if any(_is_played(one) for _, one in train_environments(spec)):
        where = "spec.algorithm.teacher.url"
        yield finding(where, None, TEACHERS_URL, NEEDS_TEACHER, also=("spec.environments.train", mode))
        return
    sizes = {"spec.algorithm": algorithm.group_size}
    for path, environment in train_environments(spec):
        own = environment.algorithm
        sizes[f"{path}.algorithm"] = None if own is None else own.group_size
    for path, size in sizes.items():
        if size not in {None, 1}:
            yield finding(f"{path}.groupSize", size, "1", ONCE, also=(mode,))


def _is_played(environment: Environment) -> bool:
    """As far as the manifest tells: what is imported may be either."""
    return environment.type.startswith("builtin:") and environment.type not in GIVEN
