"""The keys of a run, read by name; remembers which were read."""

import re
from collections.abc import Iterable
from typing import Any

from echorl_cli.convert.keys import Key
from echorl_cli.convert.layers import SECTIONS
from echorl_cli.convert.problem import ConversionError, refused
from echorl_cli.convert.renames import RENAMES
from echorl_cli.convert.secret import has_secret, shown
from echorl_cli.convert.spelling import Spellings
from echorl_cli.convert.tree import MISSING, at, leaves, location
from echorl_manifest import Problem
from echorl_manifest.schema import Location, nearest, path_text

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
    """One tree in the one spelling."""

    def __init__(self, tree: dict[str, Any], spellings: Spellings, table: Table) -> None:
        self._tree = tree
        self._spellings = spellings
        self._table = table
        self._read: set[Location] = set()
        self._read_whole: set[Location] = set()

    def items(self, path: str) -> int:
        """How many tables a list holds; 0 if it is not there.

        Raises:
            ConversionError: it is no list of tables.
        """
        value = at(self._tree, location(path))
        if value is MISSING or value is None:
            return 0
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise refused(self.written(path), self.shown(path), "a list of tables")
        return len(value)

    def has(self, path: str) -> bool:
        """Whether the key is there, a null included."""
        return at(self._tree, location(path)) is not MISSING

    def value(self, path: str) -> Any:
        """The value, or None if it is not set."""
        where = location(path)
        value = at(self._tree, where)
        self._read.add(where)
        return None if value is MISSING else value

    def peek(self, path: str) -> Any:
        """The value, or None if it is not set; it does not count as read."""
        value = at(self._tree, location(path))
        return None if value is MISSING else value

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

    def number(self, path: str) -> int | float | None:
        """A number, or None if it is not set."""
        value = self.value(path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise refused(self.written(path), self.shown(path), "a number")
        return value

    def count(self, path: str) -> int | None:
        """A whole number, or None if it is not set."""
        value = self.value(path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise refused(self.written(path), self.shown(path), "a whole number")
        return value

    def text(self, path: str) -> str | None:
        """Text, or None if it is not set."""
        value = self.value(path)
        if value is not None and not isinstance(value, str):
            raise refused(self.written(path), self.shown(path), "text")
        return value

    def flag(self, path: str) -> bool | None:
        """True or false, or None if it is not set."""
        value = self.value(path)
        if value is not None and not isinstance(value, bool):
            raise refused(self.written(path), self.shown(path), "true or false")
        return value

    def table(self, path: str) -> dict[str, Any] | None:
        """A free-form table, all of it read; None if it is not set."""
        value = self.value(path)
        if value is not None and not isinstance(value, dict):
            raise refused(self.written(path), self.shown(path), "a table")
        return None if value is None else dict(self.whole(path))

    def first(self, *paths: str) -> str | None:
        """The first of the keys that has a value; all of them count as read."""
        found = [path for path in paths if self.value(path) is not None]
        return found[0] if found else None

    def one(self, *paths: str) -> str | None:
        """The first of several keys that must agree; all of them count as read.

        Raises:
            ConversionError: two of them have different values.
        """
        found = [path for path in paths if self.value(path) is not None]
        for path in found[1:]:
            if self.value(path) != self.value(found[0]):
                names = f"{self.written(found[0])} and {self.written(path)}"
                values = f"{self.shown(found[0])} and {self.shown(path)}"
                raise ConversionError([Problem(names, values, "one value for all roles", "the roles disagree")])
        return found[0] if found else None

    def written(self, path: str | Location) -> str:
        """The key as the file has it."""
        where = location(path) if isinstance(path, str) else path
        return path_text(self._spellings.written(where))

    def shown(self, path: str | Location) -> str:
        """The value as a line may show it."""
        where = location(path) if isinstance(path, str) else path
        value = at(self._tree, where)
        return "nothing" if value is MISSING else shown(where, value)

    def unread(self) -> list[tuple[Location, Key]]:
        """Known keys that have a value and that nothing has read."""
        known = ((where, self._table.key(where)) for where, value in leaves(self._tree) if value is not None)
        return [(where, key) for where, key in known if key is not None and not self._was_read(where)]

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
