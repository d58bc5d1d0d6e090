"""What follows when processes of a run on this machine end together. Pure: no clock, no processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from echorl_core.names import Role
from echorl_core.restarts import Action, Death, Decision, Ledger, RestartPolicy, Rule, decide


@dataclass(frozen=True)
class Standing:
    """How the attempt stands when they are looked at."""

    ledger: Ledger
    gang_is_whole: bool
    """Whether every rank works, or is to be started already."""
    is_held: bool
    """Whether memory that outlived the ranks' processes holds a step of all of them."""
    orchestrator_is_seen_to: bool
    """Whether one lives, or is to be started already: what it said of its end may have been heard twice."""


def decisions(
    deaths: Sequence[Death], standing: Standing, policy: RestartPolicy, rules: Sequence[Rule]
) -> list[Decision]:
    """One about all; ranks that go on from memory, and the orchestrator, are decided on by themselves."""

    def decided(some: Sequence[Death], *, gang_is_whole: bool) -> Decision:
        return decide(
            some,
            ledger=standing.ledger,
            policy=policy,
            rules=rules,
            gang_is_whole=gang_is_whole,
            is_held=standing.is_held,
        )

    ranks = [death for death in deaths if death.role is Role.TRAINER]
    others = [death for death in deaths if death.role is not Role.TRAINER]
    if ranks and others:
        gang, other = decided(ranks, gang_is_whole=False), decided(others, gang_is_whole=True)
        if gang.action is Action.RESTART_GANG:
            if other.action is Action.FAIL:
                return [other]
            return [gang] if standing.orchestrator_is_seen_to else [gang, other]
    return [decided(deaths, gang_is_whole=standing.gang_is_whole)]
