"""Who plays which member of an episode, and who of them learns: the environment's seats, as its task asks for them.

The policy plays the member that a task names as ``learnerSeat``. A frozen player (base or endpoint) that the manifest
seats there changes places with it: that player takes the first seat that the policy would have played. So the opponent
that a manifest names is that of all tasks, whichever seat they teach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echorl_core.config import EnvironmentConfig, SeatConfig
from echorl_orchestrator.environments.contract import LEARNER_SEAT
from echorl_orchestrator.failures import EpisodeError, ErrorKind

POLICY = SeatConfig()


@dataclass(frozen=True)
class Bindings:
    """The members of one episode."""

    seats: dict[str, SeatConfig]
    """Who plays, by member, in the environment's order."""
    learners: list[str]
    """Members that train; of an eval, the one whose reward it reports."""


def seat_of(environment: EnvironmentConfig, member: str) -> SeatConfig:
    """Who plays a member as the manifest says, whatever a task asks for."""
    return environment.members.get(member, POLICY)


def competing(environment: EnvironmentConfig, members: Sequence[str]) -> list[str]:
    """Members that ``dropMembers`` does not name: one of them may learn, and be changed places with."""
    return [member for member in members if member not in environment.drop_members]


def frozen(environment: EnvironmentConfig, members: Sequence[str]) -> list[str]:
    """Members that compete and are played by a base or an endpoint, as the manifest says."""
    return [name for name in competing(environment, members) if seat_of(environment, name).policy != "learner"]


def bind(environment: EnvironmentConfig, members: Sequence[str], task: dict[str, Any], *, evaluation: bool) -> Bindings:
    """Who plays and learns in an episode of ``task``.

    Without a frozen player all that compete learn. Beside one, and in an eval, it is the task's ``learnerSeat`` alone.

    Raises:
        EpisodeError: ENV: the task names no member that competes.
    """
    seats = {member: seat_of(environment, member) for member in members}
    candidates, opponents = competing(environment, members), frozen(environment, members)
    if not evaluation and not opponents:
        return Bindings(seats, candidates)
    learner = task.get(LEARNER_SEAT)
    if learner not in candidates:
        why = "an eval" if evaluation else "a frozen seat"
        found = "nothing" if learner is None else repr(learner)
        accepted = " or ".join(candidates) or "none, as dropMembers names all members"
        raise EpisodeError(ErrorKind.ENV, f"task.{LEARNER_SEAT}: needed by {why}; found {found}, accepted: {accepted}")
    opponent, free = seats[learner], [name for name in candidates if name not in opponents]
    if learner in opponents:
        seats[learner] = POLICY
        if free:
            seats[free[0]] = opponent
    return Bindings(seats, [learner])
