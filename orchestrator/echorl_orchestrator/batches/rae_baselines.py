"""RAE's baselines of a run: moved by what is shipped, saved with every batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from echorl_core.config import AdvantageConfig, OrchestratorConfig
from echorl_orchestrator.advantages.rae import Baselines, BaselineState, MissingBaselines
from echorl_orchestrator.batches.sealing import SavedState
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.rollout.groups import ReadyEpisode


def rae_of(config: OrchestratorConfig) -> dict[str, AdvantageConfig]:
    """Environments whose advantage is RAE, with its settings."""
    advantages = {environment.name: config.batch.of(environment).advantage for environment in config.train}
    return {name: advantage for name, advantage in advantages.items() if advantage.type == "rae"}


class RunBaselines:
    """Baselines by environment, each with its own momentum and order."""

    def __init__(self, baselines: Mapping[str, Baselines]) -> None:
        self._baselines = dict(baselines)

    @classmethod
    def resumed(cls, config: OrchestratorConfig, state: SavedState | None) -> "RunBaselines":
        """Where a saved state left them; at 0 on a fresh run, and for an environment that came to it later.

        Raises:
            BadInputError: the state has none for an environment that it knows, or unusable ones.
        """
        wanted = rae_of(config)
        if state is None:
            return cls({name: _fresh(advantage) for name, advantage in wanted.items()})
        made = {}
        for name, advantage in wanted.items():
            if name not in state.deck.cursors:
                made[name] = _fresh(advantage)
                continue
            try:
                made[name] = Baselines.resumed(_part(state.baselines, name), **_settings(advantage))
            except MissingBaselines as error:
                raise BadInputError(f"environments.{name}: {error} (step {state.step})") from None
            except ValueError as error:
                raise BadInputError(f"environments.{name}: state of step {state.step}: {error}") from None
        return cls(made)

    def shipped(self, units: Sequence[ReadyEpisode]) -> "RunBaselines":
        """Baselines after these units, whose advantages are set on the way; this object stays as it is.

        A unit that filters of the batch take out moves its baseline as well. Failed episodes, stale ones and those
        that filters of the group kept out are not here.
        """
        moved = RunBaselines({name: baselines.copy() for name, baselines in self._baselines.items()})
        for unit in units:
            outcome = unit.outcome
            if outcome.member and (own := moved._baselines.get(outcome.environment)) is not None:
                reward = float(outcome.reward or 0.0)
                unit.advantage = own.advantage(outcome.environment, outcome.task_key, outcome.member, reward)
        return moved

    def state(self) -> BaselineState | None:
        """What a batch's saved state keeps; None where no environment has any."""
        if not self._baselines:
            return None
        parts = [self._baselines[name].state().baselines for name in sorted(self._baselines)]
        return BaselineState(baselines=[baseline for part in parts for baseline in part])


def _fresh(config: AdvantageConfig) -> Baselines:
    return Baselines(**_settings(config))


def _settings(config: AdvantageConfig) -> dict[str, Any]:
    return {"per": config.baseline_per, "momentum": config.momentum, "order": config.order}


def _part(state: BaselineState | None, environment: str) -> BaselineState | None:
    if state is None:
        return None
    return BaselineState(baselines=[baseline for baseline in state.baselines if baseline.environment == environment])
