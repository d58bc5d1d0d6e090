"""Which experts the tokens of a branch went to, as far as engines told."""

from collections.abc import Sequence

import numpy as np

from echorl_core.routing import Choices


class RoutedTokens:
    """Of the first tokens of a branch. What was told of a token first stands: it is the pass that sampled what follows.

    The last token of a turn has not been through the model when the turn ends; the next turn's engine tells of it.
    """

    def __init__(self, parts: Sequence[Choices] = ()) -> None:
        self._parts = list(parts)
        self._size = sum(len(part) for part in self._parts)

    def __len__(self) -> int:
        return self._size

    def add(self, start: int, choices: Choices) -> None:
        """Take what an engine told of the tokens from ``start`` on, [n, layers, k]; behind a gap nothing is taken."""
        known = self._size - start
        if 0 <= known < len(choices):
            self._parts.append(choices[known:])
            self._size = start + len(choices)

    def head(self, count: int) -> "RoutedTokens":
        """Those of the first ``count`` tokens."""
        whole = self.whole()
        return RoutedTokens() if whole is None else RoutedTokens([whole[:count]])

    def whole(self) -> Choices | None:
        """[n, layers, k] of the first n tokens; None if nothing is known."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else None
