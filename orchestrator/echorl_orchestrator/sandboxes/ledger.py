"""What workers tell of sandboxes that are not there (yet): who waits and why, what was lost. For ``GET /state``."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from echorl_core.wire.run_state import SandboxesState, SandboxWaits
from echorl_orchestrator.sandboxes.contract import SandboxLoss

FORGOTTEN_AFTER_S = 45.0
"""Who waits says so every half minute; who does not say it again was cancelled, or its worker is gone."""
_MOST = 4096


class SandboxLedger:
    """Of one attempt's orchestrator, over all environments. Not for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds that never go back."""
        self._clock = clock
        self._waits: OrderedDict[str, tuple[float, str, str]] = OrderedDict()
        self._lost: Counter[str] = Counter()

    def waits(self, key: str, why: str, reason: str) -> None:
        """A sandbox is still not there.

        Args:
            key: of that sandbox alone, over all episodes.
            why: in one word.
            reason: in the broker's words.
        """
        self._waits.pop(key, None)
        self._waits[key] = (self._clock(), why, reason)
        if len(self._waits) > _MOST:
            self._waits.popitem(last=False)

    def settled(self, key: str, loss: SandboxLoss | None = None) -> None:
        """A sandbox is there, or is gone: ``loss`` says why where nobody asked for its end."""
        self._waits.pop(key, None)
        if loss is not None:
            self._lost[str(loss)] += 1

    def state(self) -> SandboxesState:
        """How things stand now."""
        since = self._clock() - FORGOTTEN_AFTER_S
        while self._waits and next(iter(self._waits.values()))[0] < since:
            self._waits.popitem(last=False)
        counts = Counter(why for _, why, _ in self._waits.values())
        newest = {why: reason for _, why, reason in self._waits.values()}
        return SandboxesState(
            waiting=[SandboxWaits(why=why, count=counts[why], reason=newest[why]) for why in sorted(counts)],
            lost=dict(sorted(self._lost.items())),
        )
