"""Repositories with a bug and a failing test, made from a seed: data for ``builtin:swe`` that needs no network.

Each is a Python package of one module and its tests. The module is told in the statement, with the call that comes out
wrong; the tests that grade know more calls than those in the repository.
"""

import difflib
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.builtin.parts.swe.bugs import FUNCTIONS, Family, Function
from echorl_orchestrator.environments.builtin.parts.swe.row import Row, SuiteGrader

_TEST_SHARE = 5
_MAX_DRAWS = 10_000
_MODULES = ("calc", "tools", "ops", "core", "kit", "lib", "util", "base", "plain", "prim", "work", "fns")
_NAMES = (("a", "b"), ("x", "y"), ("p", "q"), ("u", "v"), ("m", "n"))


class SeededArgs(BaseModel):
    """Which repositories are made."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: Literal["train", "test"] = "train"
    num_tasks: int = Field(default=256, ge=1, le=4096)
    seed: int = 0
    functions: int = Field(default=2, ge=1, le=8)
    """Of a module; one of them has the bug."""
    families: list[Family] = Field(default=["operator", "order", "index", "comparison", "constant"], min_length=1)
    image: str = "host"
    """Anything with ``sh``, ``git`` and ``python3``."""
    workdir: str = "/repo"


@dataclass(frozen=True)
class SeededBug:
    """What there is to know of a seeded repository."""

    path: str
    line: int
    """Of the bug, from 1."""
    right: str
    """What the line should be."""
    wrong: str
    """What it is."""


def seeded_rows(args: SeededArgs) -> list[Row]:
    """Distinct rows; always the same for the same arguments. A row is in one of the splits, whatever the seed.

    Raises:
        ValueError: there are not that many.
    """
    rng = random.Random(f"swe:{args.seed}")
    chosen: dict[str, Row] = {}
    misses = 0
    while len(chosen) < args.num_tasks:
        row, _ = _drawn(args, rng)
        is_test = int(row.key[-8:], 16) % _TEST_SHARE == 0
        misses = misses + 1 if is_test != (args.split == "test") or row.key in chosen else 0
        if misses > _MAX_DRAWS:
            raise ValueError(f"num_tasks is {args.num_tasks}, but only about {len(chosen)} different tasks exist")
        if misses == 0:
            chosen[row.key] = row
    return list(chosen.values())


def bug_of(row: Row) -> SeededBug:
    """The bug of a seeded row, from its gold patch."""
    lines = (row.gold or b"").decode().splitlines()
    path = lines[0].split(" b/")[1]
    wrong = next(line[1:] for line in lines[4:] if line.startswith("-"))
    right = next(line[1:] for line in lines[4:] if line.startswith("+"))
    number = row.files[path].decode().splitlines().index(wrong) + 1
    return SeededBug(path, number, right, wrong)


def _drawn(args: SeededArgs, rng: random.Random) -> tuple[Row, Family]:
    suited = [one for one in FUNCTIONS if any(family in args.families for family, _ in one.wrong)]
    broken = rng.choice(suited)
    family, wrong = rng.choice([found for found in broken.wrong if found[0] in args.families])
    others = rng.sample([one for one in FUNCTIONS if one is not broken], args.functions - 1)
    functions = [*others, broken]
    rng.shuffle(functions)
    module, names = rng.choice(_MODULES), rng.choice(_NAMES)
    path = f"{module}.py"
    right = _source(functions, names, None, "")
    source = _source(functions, names, broken, wrong)
    arguments, value = broken.cases[0]
    found = _value(wrong, broken, arguments)
    call = f"{broken.name}({', '.join(map(repr, arguments))})"
    tests, hidden = (_tests(module, functions, count) for count in (1, None))
    place = f"tests/test_{module}.py"
    digest = hashlib.sha256(f"{source}\0{module}".encode()).hexdigest()[:12]
    ids = {one.name: f"tests.test_{module}.Tests.test_{one.name}" for one in functions}
    row = Row(
        key=f"{module}-{broken.name}-{digest}",
        image=args.image,
        workdir=args.workdir,
        statement=f"{path}: {call} is {found}, want {value!r}",
        grader=SuiteGrader(
            "unittest",
            (place,),
            (ids[broken.name],),
            tuple(ids[one.name] for one in functions if one is not broken),
        ),
        files={path: source.encode(), place: tests.encode(), "tests/__init__.py": b""},
        test_files={place: hidden.encode(), "tests/__init__.py": b""},
        gold=_diff(path, source, right),
    )
    return row, family


def _source(functions: Sequence[Function], names: tuple[str, str], broken: Function | None, wrong: str) -> str:
    parts = []
    for one in functions:
        body = wrong if one is broken else one.right
        parts.append(f"def {one.name}({named(one.arguments, names)}):\n    return {named(body, names)}\n")
    return "\n".join(parts)


def named(text: str, names: tuple[str, str]) -> str:
    """``text`` with other names for ``a`` and ``b``, where they stand as words."""
    words = {"a": names[0], "b": names[1]}
    plain = "".join(character if character.isalnum() else f"\0{character}\0" for character in text)
    return "".join(words.get(part, part) for part in plain.split("\0"))


def _tests(module: str, functions: Sequence[Function], count: int | None) -> str:
    lines = ["import unittest", "", f"import {module}", "", "", "class Tests(unittest.TestCase):"]
    for number, one in enumerate(functions):
        lines += [""] if number else []
        lines += [f"    def test_{one.name}(self):"]
        for arguments, value in one.cases[:count]:
            call = f"{module}.{one.name}({', '.join(map(repr, arguments))})"
            lines += [f"        self.assertEqual({call}, {value!r})"]
    return "\n".join(lines) + "\n"


def _value(body: str, function: Function, arguments: tuple[object, ...]) -> str:
    names = [name.strip() for name in function.arguments.split(",")]
    return repr(eval(body, {}, dict(zip(names, arguments, strict=True))))  # noqa: S307 - of our own table


def _diff(path: str, before: str, after: str) -> bytes:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return ("\n".join([f"diff --git a/{path} b/{path}", *lines]) + "\n").encode()
