"""What of a turn is said aloud, and whether its reasoning markup can be told from its speech.

Reasoning stands between the opening and the closing markup of a tag, ``<think>`` and ``</think>``, at most once in a
turn. A generation prompt may have opened it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LINE_BREAKS = 4
"""Characters that a template may put after an opening tag, at most."""


@dataclass(frozen=True)
class Reading:
    """A turn, read."""

    public: str
    """What others may see. Where the markup is broken, only what cannot be reasoning."""
    flaw: str | None = None
    """``nested``, ``crossed``, ``repeated``, ``stray`` or ``unclosed``, the first found: the turn must not train."""


class Reasoning:
    """Reads turns by the tags that an environment's members reason in."""

    def __init__(self, tags: Sequence[str] = ("think",)) -> None:
        """``tags``: names, without brackets."""
        self._tags = list(tags)
        self._markup = re.compile(f"<(/?)({'|'.join(map(re.escape, self._tags))})>")
        self.prompt_end = max(map(len, self._tags)) + len("<>") + _LINE_BREAKS
        """Characters at the end of a prompt that an opening tag may stand in."""

    def opened_by(self, prompt: str) -> str | None:
        """The tag that the end of a prompt opens."""
        return next((tag for tag in self._tags if prompt.rstrip().endswith(f"<{tag}>")), None)

    def read(self, text: str, *, opened: str | None = None) -> Reading:
        """Read a completion's text.

        Args:
            text: with its markup.
            opened: the tag that the prompt has opened.
        """
        inside = [] if opened is None else [opened]
        blocks = len(inside)
        flaw: str | None = None
        said: list[str] = []
        start = 0
        for markup in self._markup.finditer(text):
            closing, tag = markup.groups()
            if not inside:
                said.append(text[start : markup.start()])
            start = markup.end()
            if not closing:
                flaw = flaw or ("nested" if inside else "repeated" if blocks else None)
                inside.append(tag)
                blocks += 1
            elif not inside:
                # Somebody opened it where we cannot see: all so far may be reasoning.
                flaw, said = flaw or "stray", []
            elif inside[-1] == tag:
                inside.pop()
            else:
                flaw = flaw or "crossed"
        if not inside:
            said.append(text[start:])
        public = "".join(said).strip() if blocks or flaw else text
        return Reading(public, flaw or ("unclosed" if inside else None))
