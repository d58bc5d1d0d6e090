"""The move of every key to the spelling that all other code reads, and how it was written before."""

from dataclasses import dataclass
from typing import Any

from echorl_cli.convert.layers import SECTIONS
from echorl_cli.convert.renames import RENAMES, SUPERVISED, Rename
from echorl_cli.convert.secret import shown
from echorl_cli.convert.tree import MISSING, at, expanded, leaves, location, put, take
from echorl_manifest import Problem
from echorl_manifest.schema import Location, path_text


class Spellings:
    """How the keys of one tree were written before they moved."""

    def __init__(self) -> None:
        self._written: dict[Location, Location] = {}
        self._made_from: dict[Location, Location] = {}
        self.problems: list[Problem] = []
        """Values that could not move: two for one key, or one where a table must be."""
        self.earlier = False
        """Whether a key was in the spelling of the first generations."""

    def moved(self, old: Location, new: Location, value: Any) -> None:
        """Note that everything under ``old`` stands under ``new`` from now on."""
        if old in self._made_from:
            self._made_from[new] = self._made_from.pop(old)
        for rest, _ in leaves(value):
            self._written[(*new, *rest)] = self._written.pop((*old, *rest), (*old, *rest))

    def converted(self, old: Location, new: Location, value: Any) -> None:
        """Note that everything under ``new`` was made from the one value under ``old``."""
        before = self._made_from[new] = self.written(old)
        for rest, _ in leaves(value):
            self._written[(*new, *rest)] = before

    def written(self, key: Location) -> Location:
        """The key as the file has it."""
        for origins in (self._written, self._made_from):
            if key in origins:
                return origins[key]
        for now, before in self._written.items():
            rest = now[len(key) :]
            if now[: len(key)] == key and before[-len(rest) :] == rest:
                return before[: len(before) - len(rest)]
        return key


@dataclass(frozen=True)
class _Move:
    tree: dict[str, Any]
    spellings: Spellings

    def merge(self, old: Location, new: Location, value: Any) -> None:
        """Put ``value``, which stood under ``old``, under ``new``, beside what is there."""
        present = at(self.tree, new)
        if present is MISSING:
            if self._has_room(new):
                put(self.tree, new, value)
                self.spellings.moved(old, new, value)
        elif isinstance(present, dict) and isinstance(value, dict):
            for key, item in value.items():
                self.merge((*old, key), (*new, key), item)
        elif present != value or isinstance(present, bool) != isinstance(value, bool):
            self._conflict(old, new, value)

    def _has_room(self, new: Location) -> bool:
        """Whether no value stands where the table around ``new`` must be: it would be lost."""
        for depth in range(1, len(new)):
            around = at(self.tree, new[:depth])
            if around is MISSING or around is None:
                return True
            if not isinstance(around, list if isinstance(new[depth], int) else dict):
                where = self.spellings.written(new[:depth])
                self.spellings.problems.append(Problem(path_text(where), shown(where, around), "a table"))
                return False
        return True

    def _conflict(self, old: Location, new: Location, value: Any) -> None:
        before, after = self.spellings.written(old), self.spellings.written(new)
        both = f"{shown(before, value)} and {shown(after, at(self.tree, new))}"
        reason = "two spellings of one key with different values"
        names = f"{path_text(before)} and {path_text(after)}"
        self.spellings.problems.append(Problem(names, both, "one of the two, or equal values", reason))

    def carry_out(self, rename: Rename) -> None:
        """Move what is written in the other spelling, wherever it stands."""
        for old in list(expanded(self.tree, location(rename.other))):
            value = at(self.tree, old)
            converted = rename.value(value) if rename.value and value is not MISSING else value
            if converted is MISSING:
                continue
            take(self.tree, old)
            self.spellings.earlier |= rename.earlier
            indices = iter([step for step in old if isinstance(step, int)])
            new = tuple(next(indices) if step == "[]" else step for step in location(rename.read_as))
            self.merge(old, new, converted)
            if rename.value:
                self.spellings.converted(old, new, converted)


def one_spelling(tree: dict[str, Any]) -> Spellings:
    """Move every key of ``tree`` to the one spelling that the tables know, in place."""
    spellings = Spellings()
    for section in SECTIONS:
        if not isinstance(tree.get(section, {}), dict | None):
            spellings.problems.append(Problem(section, shown((section,), tree.pop(section)), "a table"))
    move = _Move(tree, spellings)
    supervised = "data" in tree and "orchestrator" not in tree
    for rename in (*SUPERVISED, *RENAMES) if supervised else RENAMES:
        move.carry_out(rename)
    return spellings
