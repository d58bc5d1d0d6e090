"""Who plays episodes, as the scheduler sees them."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from echorl_core.config import EnvironmentConfig
from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.filters.filter_hook import FilterEpisode


class Player(Protocol):
    """Plays episodes; see ``episodes.EpisodePlayer``."""

    async def num_tasks(self, environment: EnvironmentConfig) -> int:
        """How many tasks the environment has."""
        ...

    async def task(self, environment: EnvironmentConfig, index: int) -> dict[str, Any]:
        """Task ``index`` of the environment."""
        ...

    def room(self, environment: EnvironmentConfig) -> AbstractAsyncContextManager[object]:
        """To be held while an episode is played, retries included; waits where the run has bounded those at once."""
        ...

    async def play(
        self,
        environment: EnvironmentConfig,
        task: dict[str, Any],
        *,
        episode: str,
        group: str,
        seed: int,
        attempt: int,
    ) -> EpisodeOutcome:
        """Play one episode to its end; failures are in the outcome."""
        ...

    async def score_group(
        self, environment: EnvironmentConfig, task: dict[str, Any], outcomes: list[EpisodeOutcome]
    ) -> list[float] | None:
        """Rewards of a group's survivors; None if the environment does not score groups."""
        ...

    async def advantages(self, environment: EnvironmentConfig, inputs: AdvantageInputs) -> list[float]:
        """What the user's own function says of a group, one for each of its episodes.

        Raises:
            BadInputError: it failed, or returned something else.
        """
        ...

    async def matches(
        self, environment: EnvironmentConfig, index: int, episodes: Sequence[FilterEpisode]
    ) -> list[bool]:
        """Which episodes match the user's own filter, the rule ``index``.

        Raises:
            BadInputError: it failed, or returned something else.
        """
        ...
