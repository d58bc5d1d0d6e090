"""How many of each environment's newest episodes were lost to infrastructure: an engine, a sandbox, a worker."""

from collections import deque
from collections.abc import Mapping

from echorl_core.wire.run_state import InfrastructureLoss
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import OF_INFRASTRUCTURE, ErrorKind

WINDOW = 64
"""Newest episodes of an environment that a share is taken of."""
_FEWEST = 8
"""Episodes that a share says something of."""


class InfrastructureLosses:
    """Counts train episodes; those that a new attempt played before are not known to it."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        """``limits``: by environment, the share of its episodes that may be lost before that is told."""
        self._limits = dict(limits)
        self._lost: dict[str, deque[bool]] = {name: deque(maxlen=WINDOW) for name in limits}
        self._last_error: dict[str, str] = {}

    def note(self, outcome: EpisodeOutcome, kind: ErrorKind | None) -> None:
        """Count an episode that has ended; one that was cancelled says nothing."""
        if kind is ErrorKind.CANCELLED or outcome.environment not in self._lost:
            return
        self._lost[outcome.environment].append(kind in OF_INFRASTRUCTURE)
        if kind in OF_INFRASTRUCTURE:
            self._last_error[outcome.environment] = f"{kind}: {outcome.error}"

    def beyond(self) -> list[InfrastructureLoss] | None:
        """Environments that lose more than they may, by name; None before anything can be said of any."""
        told = {name: lost for name, lost in self._lost.items() if len(lost) >= _FEWEST}
        if not told:
            return None
        return [
            InfrastructureLoss(
                environment=name,
                share=round(sum(lost) / len(lost), 2),
                limit=self._limits[name],
                error=self._last_error[name],
            )
            for name, lost in sorted(told.items())
            if sum(lost) > self._limits[name] * len(lost)
        ]
