"""Whether a manifest goes with what its environments turned out to be, once their workers have loaded them."""

from collections.abc import Mapping, Sequence

from echorl_core.config import BatchConfig, EnvironmentConfig, OrchestratorConfig
from echorl_orchestrator.episodes.multi_agent.bindings import bind, competing, frozen
from echorl_orchestrator.episodes.multi_agent.endpoint import key_of
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.workers.worker import EnvironmentFacts


def incompatibilities(
    config: OrchestratorConfig, facts: Mapping[str, EnvironmentFacts], keys: Mapping[str, str]
) -> list[str]:
    """What is wrong with seats, advantage, filters and curriculum.

    Args:
        config: of the run.
        facts: of the loaded environments, by name.
        keys: of endpoints, by ``key_variable``.
    """
    found = []
    base = config.model.lora is not None and config.model.renderer != "engine"
    for environment in config.train:
        known = facts[environment.name]
        found += seat_problems(environment, known, keys, serves_base=base, evaluation=False)
        found += learning_problems(environment, config.batch.of(environment), known.members)
    for entry in config.evals:
        known = facts[entry.environment.name]
        found += seat_problems(entry.environment, known, keys, serves_base=base, evaluation=True)
    return found


def seat_problems(
    environment: EnvironmentConfig,
    facts: EnvironmentFacts,
    keys: Mapping[str, str],
    *,
    serves_base: bool,
    evaluation: bool,
) -> list[str]:
    """What is wrong with the seats of a loaded environment."""
    where, members = f"environments.{environment.name}", facts.members
    if not members:
        return [f"{where}.members: the environment is not multi-agent"] if environment.members else []
    accepted = ", ".join(members)
    found = [
        f"{where}.members: found {name!r}, accepted are {accepted}"
        for name in environment.members
        if name not in members
    ]
    candidates, opponents = competing(environment, members), frozen(environment, members)
    if not candidates:
        found.append(f"{where}: no member learns; accepted is at least one that dropMembers does not name")
    elif opponents == candidates and len(candidates) == 1:
        (name,) = opponents
        policy = environment.members[name].policy
        found.append(f"{where}.members.{name}.policy: found {policy}, accepted is learner: no other member could learn")
    else:
        try:
            bind(environment, members, facts.first_seat, evaluation=evaluation)
        except EpisodeError as error:
            found.append(f"{where}: task 0: {error.message}")
    for name, seat in environment.members.items():
        if seat.policy == "base" and not serves_base:
            why = "the engines serve it beside an adapter alone (model.lora), and not with renderer engine"
            found.append(f"{where}.members.{name}: policy base: {why}")
        try:
            key_of(seat, keys)
        except KeyError as error:
            found.append(f"{where}.members.{name}: environment variable {error.args[0]} is missing")
    return found


def learning_problems(environment: EnvironmentConfig, batch: BatchConfig, members: Sequence[str]) -> list[str]:
    """What of mode, advantage, filters and curriculum does not go with a loaded train environment.

    Args:
        environment: as configured.
        batch: as it holds for this environment.
        members: of the loaded environment; empty if it is not multi-agent.
    """
    name = environment.name
    if members and batch.mode != "rl":
        return [f"spec.algorithm.mode: found {batch.mode!r}; environment {name!r} is multi-agent, which is for mode rl"]
    found: list[str] = []
    advantage = batch.advantage
    if bool(members) != (advantage.type == "rae"):
        kind = "is multi-agent, which needs rae" if members else "is not multi-agent, which rae is for"
        found.append(f"spec.algorithm.advantage.type: found {advantage.type!r}; environment {name!r} {kind}")
    several = (
        f"environment {name!r} is multi-agent, and the mean reward of its members does not tell how hard a task is"
    )
    if members and any(rule.type == "difficulty" for rule in batch.filters):
        accepted = "zeroAdvantage, gibberish, repetition or custom"
        found.append(f"spec.algorithm.filters: found 'difficulty', accepted are {accepted}; {several}")
    if members and environment.curriculum is not None:
        found.append(f"environments.{name}.curriculum: found a value, accepted is none; {several}")
    return found
