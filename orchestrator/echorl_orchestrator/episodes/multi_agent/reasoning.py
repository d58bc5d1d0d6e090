"""What of a turn is said aloud, and whether its reasoning markup can be told from its speech.

Reasoning stands between ``<think>`` and ``</think>``, at most once in a turn. A generation prompt may have opened it.
"""

import re
from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
_TAG = re.compile(f"{re.escape(OPEN)}|{re.escape(CLOSE)}")


@dataclass(frozen=True)
class Reading:
    """A turn, read."""

    public: str
    """What others may see. Where the markup is broken, only what cannot be reasoning."""
    flaw: str | None = None
    """``nested``, ``repeated``, ``stray`` or ``unclosed``: the turn must not train. The first one found."""


def read(text: str, *, opened: bool = False) -> Reading:
    """Read a completion's text.

    Args:
        text: with its markup.
        opened: the prompt ends with an open ``<think>``.
    """
    depth = blocks = int(opened)
    flaw: str | None = None
    said: list[str] = []
    start = 0
    for tag in _TAG.finditer(text):
        if depth == 0:
            said.append(text[start : tag.start()])
        start = tag.end()
        if tag.group() == OPEN:
            flaw = flaw or ("nested" if depth else "repeated" if blocks else None)
            depth, blocks = depth + 1, blocks + 1
        elif depth:
            depth -= 1
        else:
            # Somebody opened it where we cannot see: all so far may be reasoning.
            flaw, said = flaw or "stray", []
    if depth == 0:
        said.append(text[start:])
    return Reading("".join(said).strip() if blocks or flaw else text, flaw or ("unclosed" if depth else None))
