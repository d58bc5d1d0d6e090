"""What becomes of a group when its episodes have ended: scores, advantages, filters.

    scheduler --group--> scores --> advantages --> group-stage filters --ready episodes--> scheduler --> buffer

The environment and the user's own functions are asked here; what is computed of their answers stands in ``groups``.
"""

from collections import defaultdict
from typing import Any

import structlog

from echorl_core.config import BatchConfig, EnvironmentConfig
from echorl_orchestrator.advantages.advantage_hook import inputs_of
from echorl_orchestrator.failures import EpisodeError, ErrorKind, FailureLimit
from echorl_orchestrator.filters.filter_hook import inputs_of as filter_inputs_of
from echorl_orchestrator.rollout.counters import EpisodeLedger
from echorl_orchestrator.rollout.groups import (
    NO_REWARD,
    Group,
    ReadyEpisode,
    close,
    own_filter,
    units_of,
    usable_scores,
)
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.rollout.player import Player

log = structlog.get_logger()


class GroupScoring:
    """Closes groups of train episodes."""

    def __init__(
        self, config: BatchConfig, *, player: Player, ledger: EpisodeLedger, vocab_size: int | None = None
    ) -> None:
        """``vocab_size``: of the model; needed where a filter asks for gibberish."""
        self._config, self._mode, self._player = config, MODES[config.mode], player
        self._counters = ledger.counters
        self._vocab_size = vocab_size
        # Apart from the run's: episodes of a group end well before anybody knows that it cannot be scored.
        self._scoring: defaultdict[str, FailureLimit] = defaultdict(ledger.failures.another)

    async def close(
        self, group: Group, environment: EnvironmentConfig, task: dict[str, Any]
    ) -> tuple[bool, list[ReadyEpisode]]:
        """Whether the group falls as a whole, and else its survivors with their advantages; none where all failed.

        Raises:
            BadInputError: a user's own function failed, or a reward that the advantage is not defined for.
            EpisodeError: SANDBOX: the worker died under a user's own function, again and again.
            RunFailure: too many failures in a row.
        """
        if not group.survivors:
            return False, []
        fallen, scores = await self._scores(group, environment, task)
        if fallen or not group.survivors:
            return fallen, []
        return False, await self._ready(group, environment, scores)

    async def _ready(
        self, group: Group, environment: EnvironmentConfig, scores: list[float] | None
    ) -> list[ReadyEpisode]:
        """The survivors with their advantages and what group-stage filters say of them."""
        config = self._config.of(environment)
        given = await self._given(group, environment, scores) if config.advantage.type == "custom" else None
        ready = close(group, config, scores, given, vocab_size=self._vocab_size)
        own = [index for index, rule in enumerate(config.filters) if rule.type == "custom"]
        if own:
            units = units_of(ready)
            asked = filter_inputs_of(units, environment.name)
            for index in own:
                own_filter(units, config, index, await self._player.matches(environment, index, asked))
        return ready

    async def _given(self, group: Group, environment: EnvironmentConfig, scores: list[float] | None) -> list[float]:
        """Advantages by the user's own function."""
        outcomes = group.outcomes()
        rewards = scores or [float(outcome.reward or 0.0) for outcome in outcomes]
        inputs = inputs_of(outcomes, rewards, environment=environment.name, group_size=group.size)
        return await self._player.advantages(environment, inputs)

    async def _scores(
        self, group: Group, environment: EnvironmentConfig, task: dict[str, Any]
    ) -> tuple[bool, list[float] | None]:
        """Whether a group-scored group falls as a whole, and its scores."""
        if not self._mode.group_scores:
            return False, None
        limit = self._scoring[environment.name]
        try:
            scores = await self._player.score_group(environment, task, group.outcomes())
        except EpisodeError as error:
            return self._unscored(group, error, limit), None
        if scores is None:
            if dropped := group.drop_unscored():
                self._counters.add(f"failures/{ErrorKind.ENV}", dropped)
            limit.note_all(dropped, ErrorKind.ENV, f"group {group.key}: {NO_REWARD}")
            return False, None
        if group.failures:
            return True, None
        if usable_scores(scores, len(group.survivors)):
            limit.note_all(0, ErrorKind.ENV, "")
            return False, scores
        message = f"score_group returned {scores}, accepted are {len(group.survivors)} finite numbers"
        return self._unscored(group, EpisodeError(ErrorKind.ENV, message), limit), None

    def _unscored(self, group: Group, error: EpisodeError, limit: FailureLimit) -> bool:
        log.warning("group could not be scored", group=group.key, error=str(error))
        self._counters.add(f"failures/{error.kind}")
        group.could_not_be_scored(error.kind, f"the group could not be scored: {error.message}")
        limit.note_all(len(group.survivors), error.kind, f"group {group.key} could not be scored: {error.message}")
        return True
