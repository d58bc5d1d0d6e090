"""Rules of multi-agent environments: who plays a member, and which advantage goes with it.

What an ``import:`` environment is shows when its workers have loaded it; the orchestrator then says the same.
"""

from collections.abc import Iterator

from echorl_core.builtin_environments import BUILTIN_ENVIRONMENTS, BUILTIN_MEMBERS
from echorl_manifest.models.algorithm import Advantage, Filter
from echorl_manifest.models.environments import Environment, TrainEnvironment
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, eval_environments, finding, train_environments

MULTI_AGENT_BUILTINS = tuple(name for name, kind in BUILTIN_ENVIRONMENTS.items() if kind == "multi_agent")
ENDPOINTS_URL = "a URL that begins with http:// or https://"
OTHER_ADVANTAGES = "groupMean, none, maxRl or custom"
NOBODY_ELSE = "no other member could learn"
NOBODY = "no member learns"
NO_SUCH = "the environment has no such member"
NO_MEMBERS = "the environment has no members"
LATE = "RAE's advantages are known when a batch is sealed"
ONLY_RL = "several agents learn in mode rl alone"
ONE_AGENT = "an environment of one agent"
OTHER_FILTERS = "zeroAdvantage, gibberish, repetition or custom"
NOT_HARD = "an episode of several agents has the mean reward of its members, which does not tell how hard its task is"


def not_all(members: tuple[str, ...]) -> str:
    """What ``dropMembers`` of a built-in environment may be."""
    return f"a list without one of {', '.join(members)}"


def is_multi_agent(environment: Environment) -> bool | None:
    """Whether it is; None where only its code can tell."""
    source, _, name = environment.type.partition(":")
    if source == "builtin":
        return name in MULTI_AGENT_BUILTINS
    return True if environment.members else None


def advantage_of(spec: EchoRLRunSpec, path: str, environment: TrainEnvironment) -> tuple[str, Advantage]:
    """Where the environment's advantage is set, and what it is."""
    own = environment.algorithm
    if own is not None and own.advantage is not None:
        return f"{path}.algorithm.advantage", own.advantage
    return "spec.algorithm.advantage", spec.algorithm.advantage


def filters_of(spec: EchoRLRunSpec, path: str, environment: TrainEnvironment) -> tuple[str, tuple[Filter, ...]]:
    """Where the environment's filters are set, and what they are."""
    own = environment.algorithm
    if own is not None and own.filters is not None:
        return f"{path}.algorithm.filters", own.filters
    return "spec.algorithm.filters", spec.algorithm.filters


def multi_agent_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What is wrong with members, and with advantages where members are known."""
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        if is_multi_agent(environment) is False and environment.members:
            found = sorted(environment.members)
            yield finding(f"{path}.members", found, "no value", NO_MEMBERS, also=(f"{path}.type",))
        yield from _seats(path, environment)
        for name, member in environment.members.items():
            is_url = member.url is None or member.url.startswith(("http://", "https://"))
            if member.policy == "endpoint" and not is_url:
                place = f"{path}.members.{name}"
                yield finding(f"{place}.url", member.url, ENDPOINTS_URL, also=(f"{place}.policy",))
    for path, trained in train_environments(spec):
        if spec.algorithm.mode == "rl":
            yield from _advantage(spec, path, trained)
            if is_multi_agent(trained):
                yield from _difficulty(spec, path, trained)
        elif is_multi_agent(trained):
            yield finding(f"{path}.type", trained.type, ONE_AGENT, ONLY_RL, also=("spec.algorithm.mode",))


def _seats(path: str, environment: Environment) -> Iterator[Finding]:
    """Members of a built-in environment that it has not, and seats that leave nobody who could learn."""
    known = BUILTIN_MEMBERS.get(environment.type.removeprefix("builtin:"))
    if known is None:
        return
    also = (f"{path}.type", f"{path}.dropMembers", f"{path}.members")
    unknown = [name for name in environment.members if name not in known]
    if unknown:
        yield finding(f"{path}.members", ", ".join(unknown), " and ".join(known), NO_SUCH, also=also[:1])
    candidates = [name for name in known if name not in environment.drop_members]
    if not candidates:
        found = ", ".join(environment.drop_members)
        yield finding(f"{path}.dropMembers", found, not_all(known), NOBODY, also=also[:1])
    policies = [environment.members[name].policy for name in candidates if name in environment.members]
    if len(candidates) == 1 and policies not in ([], ["learner"]):
        place = f"{path}.members.{candidates[0]}.policy"
        yield finding(place, policies[0], "learner", NOBODY_ELSE, also=also)


def _advantage(spec: EchoRLRunSpec, path: str, environment: TrainEnvironment) -> Iterator[Finding]:
    where, advantage = advantage_of(spec, path, environment)
    several, also = is_multi_agent(environment), (f"{path}.type",)
    if several and advantage.type != "rae":
        reason = f"environment {environment.name} is multi-agent"
        yield finding(f"{where}.type", advantage.type, "rae", reason, also=also)
    if several is False and advantage.type == "rae":
        reason = f"environment {environment.name} is not multi-agent"
        yield finding(f"{where}.type", "rae", OTHER_ADVANTAGES, reason, also=also)
    if advantage.type != "rae":
        return
    place, rules = filters_of(spec, path, environment)
    for index, rule in enumerate(rules):
        if (rule.type, rule.stage, rule.enforce) == ("zeroAdvantage", "group", True):
            yield finding(f"{place}[{index}].stage", "group", "batch", LATE, also=(f"{where}.type",))


def _difficulty(spec: EchoRLRunSpec, path: str, environment: TrainEnvironment) -> Iterator[Finding]:
    reason, also = f"environment {environment.name} is multi-agent: {NOT_HARD}", (f"{path}.type",)
    place, rules = filters_of(spec, path, environment)
    for index, rule in enumerate(rules):
        if rule.type == "difficulty":
            yield finding(f"{place}[{index}].type", rule.type, OTHER_FILTERS, reason, also=also)
    if environment.curriculum is not None:
        yield finding(f"{path}.curriculum", {}, "no value", reason, also=also)
