"""The keys of a run, read by name; remembers which were read."""

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from echorl_cli.convert.keys import Key
from echorl_cli.convert.layers import SECTIONS
from echorl_cli.convert.renames import RENAMES
from echorl_cli.convert.secret import has_secret, shown
from echorl_cli.convert.spelling import Spellings
from echorl_cli.convert.tree import MISSING, at, leaves, location
from echorl_manifest import Problem
from echorl_manifest.schema import Location, found_text, nearest, path_text

T = TypeVar("T")
_LARGEST = 2**63
"""Of numbers that are calculated with: none that is infinite, or too large for a quotient."""
_INDEX = re.compile(r"\[\d+\]")


def pattern(key: Location) -> str:
    """A location as the tables write it: ``[]`` for every index."""
    return _INDEX.sub("[]", path_text(key))


class Table:
    """The keys that are known, by their path."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = {key.key: key for key in keys}
        names = [*self.keys, *(rename.other for rename in RENAMES)]
        self.tables = {name[:cut] for name in names for cut in _cuts(name)} | {""}
        """Paths under which there are keys."""
        self._heads = {".".join(re.split(r"[.\[]", name)[:2]) for name in names}

    def key(self, where: Location) -> Key | None:
        """The key that a location has, or that everything below a table around it has."""
        key = self.keys.get(pattern(where))
        for depth in range(len(where), 0, -1):
            key = key or self.keys.get(f"{pattern(where[:depth])}.*")
        return key

    def meant(self, where: Location) -> str | None:
        """The known key that an unknown one resembles: a sibling, or the same inside the section that it belongs to."""
        parent, name = pattern(where[:-1]) if len(where) > 1 else "", str(where[-1])
        start = f"{parent}." if parent else ""
        siblings = {re.split(r"[.\[]", key[len(start) :])[0] for key in self.keys if key.startswith(start)}
        if close := nearest(name, sorted(siblings - {"*", ""})):
            return path_text((*where[:-1], close))
        sections = [section for section in SECTIONS if f"{section}.{where[0]}" in self._heads]
        return path_text((sections[0], *where)) if sections else None


class Settings:
    """One tree in the one spelling. What is wrong in it is gathered in ``problems``, and reads as not set."""

    def __init__(self, tree: dict[str, Any], spellings: Spellings, table: Table) -> None:
        self.problems = list(spellings.problems)
        self.spellings = spellings
        self._tree = tree
        self._table = table
        self._read: set[Location] = set()
        self._read_whole: set[Location] = set()

    @property
    def supervised(self) -> bool:
        """Whether the files are of supervised fine-tuning on data sets, without an orchestrator's environments."""
        return self.has("data") and not self.has("orchestrator.train")

    def wrong(self, path: str | Location, accepted: str, reason: str = "") -> None:
        """A value that cannot be, as a problem; once, however often it is read."""
        problem = Problem(self.written(path), self.shown(path), accepted, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def items(self, path: str) -> int:
        """How many tables a list holds; 0 if it is not there, and a problem if it is something else."""
        value = at(self._tree, location(path))
        if value is MISSING or value is None:
            return 0
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return len(value)
        self.wrong(path, "a list of tables")
        return 0

    def has(self, path: str) -> bool:
        """Whether the key is there, a null included."""
        return at(self._tree, location(path)) is not MISSING

    def peek(self, path: str) -> Any:
        """The value, or None if it is not set; no default, and it does not count as read."""
        value = at(self._tree, location(path))
        return None if value is MISSING else value

    def default(self, path: str) -> Any:
        """What prime-rl takes where the key is not set; None where EchoRL does the same."""
        key = self._table.keys.get(pattern(location(path)))
        return key.default if key is not None and key.to else None

    def value(self, path: str) -> Any:
        """The value, else prime-rl's default where EchoRL has another, else None."""
        self._read.add(location(path))
        value = self.peek(path)
        return self.default(path) if value is None else value

    def whole(self, path: str) -> Any:
        """The value with everything below it, all of it read."""
        self._read_whole.add(location(path))
        return self.value(path)

    def names(self, path: str) -> list[str]:
        """The keys of a table; none if it is not there."""
        table = self.peek(path)
        return list(table) if isinstance(table, dict) else []

    def is_known_alone(self, path: str) -> bool:
        """Whether the table of keys has this very key, or everything below it."""
        return path in self._table.keys or f"{path}.*" in self._table.keys

    def hides(self, path: str) -> bool:
        """Whether the value is or holds a secret."""
        where = location(path)
        return has_secret(where, at(self._tree, where))

    def _of_type(self, path: str, accepted: str, *kinds: type[T]) -> T | None:
        value = self.value(path)
        if value is None:
            return None
        fits = not isinstance(value, int | float) or abs(value) < _LARGEST  # not a number is not below anything
        if isinstance(value, kinds) and fits and (bool in kinds or not isinstance(value, bool)):
            return value
        self.wrong(path, accepted if fits else f"{accepted} below 2^63")
        return None

    def number(self, path: str) -> float | None:
        """A number, or None if it is not set; a problem if it is something else, as of all that follow."""
        return self._of_type(path, "a number", int, float)

    def count(self, path: str) -> int | None:
        """A whole number, or None if it is not set."""
        return self._of_type(path, "a whole number", int)

    def text(self, path: str) -> str | None:
        """Text, or None if it is not set."""
        return self._of_type(path, "text", str)

    def flag(self, path: str) -> bool | None:
        """True or false, or None if it is not set."""
        return self._of_type(path, "true or false", bool)

    def table(self, path: str) -> dict[str, Any] | None:
        """A free-form table, all of it read; None if it is not set."""
        return None if self._of_type(path, "a table", dict) is None else dict(self.whole(path))

    def first(self, *paths: str) -> str | None:
        """The first of the keys that is set, else the first with a default; all of them count as read."""
        self._read.update(location(path) for path in paths)
        present = [path for path in paths if self.peek(path) is not None]
        return next(iter([*present, *(path for path in paths if self.default(path) is not None)]), None)

    def written(self, path: str | Location) -> str:
        """The key as the file has it."""
        where = location(path) if isinstance(path, str) else path
        return path_text(self.spellings.written(where))

    def shown(self, path: str | Location) -> str:
        """The value as a line may show it."""
        where = location(path) if isinstance(path, str) else path
        value = at(self._tree, where)
        if value is MISSING:
            value = self.default(path_text(where))
            return "nothing" if value is None else f"prime-rl's default {found_text(value)}"
        return shown(where, value)

    def unread(self) -> list[tuple[Location, Key]]:
        """Known keys that have a value and that nothing has read."""
        keys = ((where, self._table.key(where)) for where, value in leaves(self._tree) if value is not None)
        return [(where, key) for where, key in keys if key is not None and not self._was_read(where)]

    def not_set(self) -> list[Key]:
        """Keys without counterpart that are not set, and that prime-rl has a default for that EchoRL has not."""
        keys = [key for key in self._table.keys.values() if not key.to and key.default is not None]
        return [key for key in keys if not self.has(key.key.removesuffix(".*"))]

    def unknown(self) -> list[Location]:
        """Keys that no table knows."""
        keys = [where for where, _ in leaves(self._tree) if where and self._table.key(where) is None]
        return [where for where in keys if pattern(where) not in self._table.tables]

    def misplaced(self) -> list[Location]:
        """Places where a value stands and a table must."""
        filled = [where for where, value in leaves(self._tree) if where and value not in ({}, None, [])]
        return [where for where in filled if self._table.key(where) is None and pattern(where) in self._table.tables]

    def meant(self, where: Location) -> str | None:
        """The known key that an unknown one resembles."""
        return self._table.meant(where)

    def _was_read(self, where: Location) -> bool:
        return where in self._read or any(where[:depth] in self._read_whole for depth in range(1, len(where) + 1))


def _cuts(name: str) -> list[int]:
    """Where the names of the tables that hold a key end."""
    return [match.start() for match in re.finditer(r"\.|\[\]", name)]
