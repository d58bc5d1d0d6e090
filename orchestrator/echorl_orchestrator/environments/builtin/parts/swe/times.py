"""How long the stages of an episode may take."""

from dataclasses import dataclass

from echorl_orchestrator.failures import BadInputError

_RESERVED = 0.2
"""Share of an episode's time that is kept for preparing both sandboxes, taking the diff and applying it."""
_TESTS = 0.2
"""Share of an episode's time that tests get at most where nobody says what they may take."""


@dataclass(frozen=True)
class StageTimes:
    """Deadlines of an episode's stages, in seconds."""

    create_s: float
    setup_s: float
    agent_s: float
    diff_s: float
    tests_s: float


def budgets(episode_s: float, agent_s: float | None, tests_s: float | None) -> tuple[float, float]:
    """What the agent and the tests may take of an episode, in seconds.

    Args:
        episode_s: the whole episode's time.
        agent_s: what the user says that the agent may take; None: what is left.
        tests_s: what the user says that the tests may take; None: a fifth of the episode, or what the agent leaves.

    Raises:
        BadInputError: what the user says does not fit into the episode.
    """
    if agent_s is not None and tests_s is not None:
        if agent_s + tests_s >= episode_s:
            raise BadInputError(
                f"args.agent_timeout_s and args.test_timeout_s: found {agent_s + tests_s:g} s together, accepted is"
                f" less than episodeTimeout, which is {episode_s:g} s"
            )
        return agent_s, tests_s
    free_s = episode_s * (1 - _RESERVED)
    for name, said in (("agent", agent_s), ("test", tests_s)):
        if said is not None and said >= free_s:
            raise BadInputError(
                f"args.{name}_timeout_s: found {said:g} s, accepted is less than {free_s:g} s, which is what"
                f" episodeTimeout ({episode_s:g} s) leaves beside preparing and grading"
            )
    if tests_s is None:
        tests_s = min(episode_s * _TESTS, free_s - (agent_s or 0.0))
    return free_s - tests_s if agent_s is None else agent_s, tests_s
