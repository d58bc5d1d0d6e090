"""Results that passes over one run need not compute again. They change no plan, only what a plan costs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_RUNS: Final = 512
"""Runs that ``ResultCaches`` keeps a cache of; one takes some 15 KB."""


class ResultCache:
    """One run's results of pure functions, each with the arguments that it rests on. It may be lost any time."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def of(self, what: Hashable, given: tuple[Any, ...], find: Callable[[], T]) -> T:
        """The result of ``find``, which rests on nothing but ``given``.

        Args:
            what: the result's name; only the newest result of a name is kept.
            given: what the result rests on. It is compared by value, and must not be changed afterwards.
            find: is called if ``given`` differs from the last call's; what it returns must not be changed either.
        """
        kept = self._known.get(what)
        if kept is None or kept[0] != given:
            kept = self._known[what] = (given, find())
        result: T = kept[1]
        return result


class ResultCaches:
    """Holds a cache for each of the runs that were worked on last."""

    def __init__(self, most: int = MOST_RUNS) -> None:
        self._most = most
        self._caches: OrderedDict[str, ResultCache] = OrderedDict()

    def of_run(self, uid: str) -> ResultCache:
        """The cache of one run; an empty one if nothing is known of it (any more)."""
        results = self._caches.setdefault(uid, ResultCache())
        self._caches.move_to_end(uid)
        if len(self._caches) > self._most:
            self._caches.popitem(last=False)
        return results
