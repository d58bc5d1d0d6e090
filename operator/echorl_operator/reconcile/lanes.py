"""The order in which due keys are handed out."""

from collections import OrderedDict
from enum import IntEnum
from typing import Final

from echorl_operator.observed.runs import RunKey

MOST_IN_A_ROW: Final = 7
"""So many more urgent keys, then one that waits: what people wait for goes first, and a flood of it stops nobody."""


class Urgency(IntEnum):
    """How urgent the next pass over a run is, the most urgent first."""

    EDITED = 0
    """Somebody changed a run that is there, and looks at it."""
    STARTING = 1
    """Engines and GPUs of it wait until its gang is let through."""
    NONE = 2


class _Lane:
    """Keys in turn over namespaces, and of one namespace in the order in which they came."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, OrderedDict[RunKey, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def push(self, key: RunKey) -> None:
        self._keys.setdefault(key.namespace, OrderedDict())[key] = None

    def pop(self) -> RunKey:
        namespace, keys = next(iter(self._keys.items()))
        key, _ = keys.popitem(last=False)
        if keys:
            self._keys.move_to_end(namespace)
        else:
            del self._keys[namespace]
        return key

    def discard(self, key: RunKey) -> bool:
        keys = self._keys.get(key.namespace)
        if keys is None or key not in keys:
            return False
        del keys[key]
        if not keys:
            del self._keys[key.namespace]
        return True


class Lanes:
    """Due keys, each once: the most urgent ones first, but not only."""

    def __init__(self) -> None:
        self._lanes = {urgency: _Lane() for urgency in Urgency}
        self._passed_over = dict.fromkeys(Urgency, 0)

    def __bool__(self) -> bool:
        return self.any()

    def any(self, least: Urgency = Urgency.NONE) -> bool:
        """Whether there is a key of this urgency or more."""
        return any(lane for urgency, lane in self._lanes.items() if urgency <= least)

    def push(self, key: RunKey, urgency: Urgency) -> None:
        """Add a key that is in no lane."""
        self._lanes[urgency].push(key)

    def hurry(self, key: RunKey, urgency: Urgency) -> None:
        """A key that is in a lane is as urgent as this, if it was less."""
        for less, lane in self._lanes.items():
            if less > urgency and lane.discard(key):
                self._lanes[urgency].push(key)

    def pop(self, least: Urgency = Urgency.NONE) -> RunKey:
        """The next key of this urgency or more; there must be one."""
        waiting = [urgency for urgency in Urgency if urgency <= least and self._lanes[urgency]]
        starved = [urgency for urgency in waiting if self._passed_over[urgency] >= MOST_IN_A_ROW]
        chosen = max(starved, default=waiting[0])
        for urgency in waiting:
            self._passed_over[urgency] += urgency > chosen
        self._passed_over[chosen] = 0
        return self._lanes[chosen].pop()
