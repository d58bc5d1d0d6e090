"""Rules of environments: names and types, ECHO, curricula, and how train environments may sample."""

from collections.abc import Iterator

from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_operator.api.environments import Sampling
from echorl_operator.api.problems import Problem
from echorl_operator.api.rules.algorithm import difficulty_findings
from echorl_operator.api.rules.finding import Finding, eval_environments, finding, train_environments
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


def name_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """No train environment, a name that is taken, a built-in that does not exist."""
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


def echo_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """ECHO blocks that train nothing, or that something else excludes."""
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


def curriculum_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Bounds of curricula the wrong way round."""
    for path, environment in train_environments(spec):
        if (curriculum := environment.curriculum) is not None:
            yield from difficulty_findings(f"{path}.curriculum", curriculum.easy_from, curriculum.hard_to)


def sampling_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """Sampling under which the trainer cannot compute the logprobs of what was sampled."""
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
