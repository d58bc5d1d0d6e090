"""What the modes sft and opd ask for, and what has no meaning in them. Pure functions of a typed spec."""

from collections.abc import Iterator

from echorl_operator.api.algorithm import Advantage, Algorithm, AlgorithmOverrides, Filter, Loss
from echorl_operator.api.environments import Environment
from echorl_operator.api.rules.finding import Finding, eval_environments, finding, train_environments
from echorl_operator.api.run import EchoRLRunSpec

GIVEN = ("builtin:messages", "builtin:terminal-demonstrations")
"""Built-in environments of which every task is a whole conversation."""
DEFAULT_GROUP = {"rl": 16, "sft": 1, "opd": 1}
"""Episodes of one task by mode: without baselines there is nothing for them to share."""
UNUSED = {
    "sft": {
        "loss": "mode sft trains by cross-entropy alone",
        "rlWeight": "mode sft has no policy gradient",
        "advantage": "mode sft has no advantages",
        "echo": "mode sft has no ECHO term",
    },
    "opd": {
        "rlWeight": "mode opd has a single term",
        "advantage": "the teacher's logprobs stand in for advantages",
        "echo": "mode opd has no ECHO term",
    },
}
"""Why a part of ``spec.algorithm`` is refused, by mode."""
NOT_FILTERS = {
    "sft": (
        ("zeroAdvantage", "gibberish", "repetition", "difficulty"),
        "custom",
        "mode sft has neither advantages nor samples",
    ),
    "opd": (("zeroAdvantage",), "gibberish, repetition, difficulty or custom", "mode opd has no advantages"),
}
"""Types of filters that are refused, what is accepted, and why, by mode."""
ONLY_TEACHERS = "only for modes sft and opd"
GIVEN_TYPE = "it has given conversations, for train environments of mode sft"
PLAYED_TYPE = "builtin:<name> other than messages and terminal-demonstrations, or import:<pkg.module:factory>"
NEEDS_TEACHER = "mode sft plays episodes by a teacher; environments of given conversations need none"
NEEDS_ENGINES = "only a run of mode sft without eval environments needs no engines"
OPD_TEMPERATURE = "the teacher's logprobs are those of temperature 1"
OPD_LOSS = "mode opd has a loss of its own"
OPD_MASK = "the mask of mode opd has one side"
CURRICULUM = "mode sft has no rewards of the policy"
OVERRIDES = {
    "rl": ("loss", "rlWeight", "advantage", "groupSize", "filters"),
    "sft": ("groupSize",),
    "opd": ("groupSize", "filters"),
}
"""What an environment may have of its own, by mode."""
ONE_DENOMINATOR = "one denominator serves all environments"
OWN_FUNCTIONS = "functions of one's own are the run's alone"
NOT_ATTRIBUTED = "renderer engine cannot tell whose a token is, and mode sft asks for it"


def group_size(algorithm: Algorithm) -> int:
    """Episodes of one task."""
    return algorithm.group_size or DEFAULT_GROUP[algorithm.mode]


def num_engines(spec: EchoRLRunSpec) -> int:
    """How many engines the run needs: none where nothing is sampled."""
    return spec.inference.replicas if samples(spec) else 0


def samples(spec: EchoRLRunSpec) -> bool:
    """Whether engines are asked for tokens."""
    return spec.algorithm.mode != "sft" or bool(spec.environments.eval)


def mode_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Everything that does not fit the mode."""
    yield from _unused(spec.algorithm)
    yield from _teacher(spec)
    yield from _environments(spec)
    yield from _overrides(spec)
    algorithm, renderer = spec.algorithm, spec.model.renderer
    if algorithm.mode == "opd":
        yield from _loss(algorithm)
    mode = ("spec.algorithm.mode",)
    if algorithm.mode == "sft" and renderer == "engine":
        yield finding("spec.model.renderer", renderer, "auto, compact or a family", NOT_ATTRIBUTED, also=mode)
    if spec.inference.replicas == 0 and samples(spec):
        also = ("spec.algorithm.mode", "spec.environments.eval")
        yield finding("spec.inference.replicas", 0, "at least 1", NEEDS_ENGINES, also=also)


def _unused(algorithm: Algorithm) -> Iterator[Finding]:
    mode, path, also = algorithm.mode, "spec.algorithm", ("spec.algorithm.mode",)
    written = {str(Algorithm.model_fields[name].alias) for name in algorithm.model_fields_set}
    for key, reason in UNUSED.get(mode, {}).items():
        if key in written:
            yield finding(
                f"{path}.{key}", algorithm.rl_weight if key == "rlWeight" else {}, "no value", reason, also=also
            )
    if mode in NOT_FILTERS and "filters" in written:
        types, accepted, reason = NOT_FILTERS[mode]
        for index, rule in enumerate(algorithm.filters):
            if rule.type in types:
                yield finding(f"{path}.filters[{index}].type", rule.type, accepted, reason, also=also)
    if mode != "sft" and algorithm.sft is not None:
        yield finding(f"{path}.sft", {}, "no value", "only for mode sft", also=also)
    sft = algorithm.sft
    if sft is not None and sft.tool_names is not None and "tool" not in sft.train_roles:
        where, reason = f"{path}.sft.toolNames", "only where trainRoles has tool"
        yield finding(where, list(sft.tool_names), "no value", reason, also=(f"{path}.sft.trainRoles",))


def _overrides(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What environments have of their own, and may not."""
    mode = spec.algorithm.mode
    for path, environment in train_environments(spec):
        own = environment.algorithm
        for name in () if own is None else sorted(own.model_fields_set):
            key = str(AlgorithmOverrides.model_fields[name].alias)
            if getattr(own, name) is not None and key not in OVERRIDES[mode]:
                accepted, also = f"one of {', '.join(OVERRIDES[mode])}", ("spec.algorithm.mode",)
                yield finding(
                    f"{path}.algorithm.{key}", {}, accepted, f"all environments share it in mode {mode}", also=also
                )
        if own is not None:
            yield from _shared(f"{path}.algorithm", own, mode)


def _shared(path: str, own: AlgorithmOverrides, mode: str) -> Iterator[Finding]:
    if own.loss is not None and "aggregation" in own.loss.model_fields_set:
        yield finding(f"{path}.loss.aggregation", own.loss.aggregation, "no value", ONE_DENOMINATOR)
    parts: dict[str, Loss | Advantage | Filter | None] = {"loss": own.loss, "advantage": own.advantage}
    parts |= {f"filters[{index}]": rule for index, rule in enumerate(own.filters or ())}
    for key, part in parts.items():
        if part is not None and part.type == "custom":
            yield finding(f"{path}.{key}.type", "custom", "a built-in type", OWN_FUNCTIONS)
    for index, rule in enumerate(own.filters or ()):
        if mode in NOT_FILTERS and rule.type in NOT_FILTERS[mode][0]:
            yield finding(
                f"{path}.filters[{index}].type", rule.type, *NOT_FILTERS[mode][1:], also=("spec.algorithm.mode",)
            )


def _loss(algorithm: Algorithm) -> Iterator[Finding]:
    """Of mode opd, whose own loss takes a few settings of the others."""
    path, loss, also = "spec.algorithm.loss", algorithm.loss, ("spec.algorithm.mode",)
    if loss.type != "dppo":
        yield finding(f"{path}.type", loss.type, "no value", OPD_LOSS, also=also)
    if loss.mask_high is not None:
        yield finding(f"{path}.maskHigh", loss.mask_high, "no value", OPD_MASK, also=also)


def _teacher(spec: EchoRLRunSpec) -> Iterator[Finding]:
    algorithm, path = spec.algorithm, "spec.algorithm.teacher"
    mode, also = algorithm.mode, ("spec.algorithm.mode",)
    teacher = algorithm.teacher
    given = {} if teacher is None else teacher.model_dump(by_alias=True, exclude_none=True)
    if mode == "rl":
        for key, value in given.items():
            yield finding(f"{path}.{key}", value, "no value", ONLY_TEACHERS, also=also)
        return
    if mode == "sft" and not given:
        yield from _without_teacher(spec)
        return
    for key, accepted in (("url", "the base URL of an OpenAI-compatible server"), ("model", "the name it serves")):
        if key not in given:
            yield finding(f"{path}.{key}", None, accepted, f"mode {mode} has a teacher", also=also)


def _without_teacher(spec: EchoRLRunSpec) -> Iterator[Finding]:
    also = ("spec.algorithm.mode",)
    played = [one for _, one in train_environments(spec) if _is_played(one)]
    if played:
        accepted = "the base URL of an OpenAI-compatible server"
        yield finding(
            "spec.algorithm.teacher.url", None, accepted, NEEDS_TEACHER, also=("spec.environments.train", *also)
        )
        return
    sizes = {"spec.algorithm": spec.algorithm.group_size}
    for path, environment in train_environments(spec):
        own = environment.algorithm
        sizes[f"{path}.algorithm"] = None if own is None else own.group_size
    for path, size in sizes.items():
        if size not in {None, 1}:
            reason = "without a teacher every conversation is there once"
            yield finding(f"{path}.groupSize", size, "1", reason, also=also)


def _is_played(environment: Environment) -> bool:
    """As far as the manifest tells: what is imported may be either."""
    return environment.type.startswith("builtin:") and environment.type not in GIVEN


def _environments(spec: EchoRLRunSpec) -> Iterator[Finding]:
    mode, also = spec.algorithm.mode, ("spec.algorithm.mode",)
    for path, environment in train_environments(spec):
        if environment.type in GIVEN and mode != "sft":
            yield finding(f"{path}.type", environment.type, PLAYED_TYPE, GIVEN_TYPE, also=also)
        if environment.curriculum is not None and mode == "sft":
            yield finding(f"{path}.curriculum", {}, "no value", CURRICULUM, also=also)
        temperature = environment.sampling.temperature
        if mode == "opd" and temperature not in {0, 1}:
            yield finding(f"{path}.sampling.temperature", temperature, "1", OPD_TEMPERATURE, also=also)
    for path, evaluated in eval_environments(spec):
        if evaluated.type in GIVEN:
            yield finding(f"{path}.type", evaluated.type, PLAYED_TYPE, GIVEN_TYPE)
