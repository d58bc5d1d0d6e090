"""The order in which due keys are handed out."""

from collections import OrderedDict
from typing import Final

from echorl_operator.observed.runs import RunKey

URGENT_IN_A_ROW: Final = 7
"""So many urgent keys, then one other: what people wait for goes first, and yet a flood of it stops nobody."""


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

    def discard(self, key: RunKey) -> None:
        keys = self._keys.get(key.namespace)
        if keys is not None and key in keys:
            del keys[key]
            if not keys:
                del self._keys[key.namespace]


class Lanes:
    """Due keys, each once: urgent ones first, but not only."""

    def __init__(self) -> None:
        self._urgent, self._others = _Lane(), _Lane()
        self._in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self._urgent) or bool(self._others)

    def push(self, key: RunKey, *, urgent: bool) -> None:
        """Add a key that is in no lane."""
        (self._urgent if urgent else self._others).push(key)

    def hurry(self, key: RunKey) -> None:
        """A key that is in a lane is urgent after all."""
        self._others.discard(key)
        self._urgent.push(key)

    def pop(self) -> RunKey:
        """The next key; there must be one."""
        urgent = bool(self._urgent) and (self._in_a_row < URGENT_IN_A_ROW or not self._others)
        self._in_a_row = self._in_a_row + 1 if urgent else 0
        return (self._urgent if urgent else self._others).pop()
