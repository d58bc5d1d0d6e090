"""Small functions and what can be wrong with them, by families of bugs."""

from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["operator", "order", "index", "comparison", "constant"]
Case = tuple[tuple[Any, ...], Any]


@dataclass(frozen=True)
class Function:
    """A function of one line, written with the arguments ``a`` and ``b``."""

    name: str
    arguments: str
    right: str
    """What it returns."""
    wrong: tuple[tuple[Family, str], ...]
    """What it returns with a bug; every case then comes out differently."""
    cases: tuple[Case, ...]
    """Arguments and what comes out of them; the first is the one that is reported."""


FUNCTIONS: tuple[Function, ...] = (
    Function("add", "a, b", "a + b", (("operator", "a - b"), ("operator", "a * b")), (((2, 3), 5), ((7, 1), 8))),
    Function("sub", "a, b", "a - b", (("operator", "a + b"), ("order", "b - a")), (((7, 2), 5), ((9, 4), 5))),
    Function("mul", "a, b", "a * b", (("operator", "a + b"), ("operator", "a - b")), (((3, 4), 12), ((5, 2), 10))),
    Function("div", "a, b", "a // b", (("operator", "a % b"), ("order", "b // a")), (((9, 3), 3), ((8, 2), 4))),
    Function("larger", "a, b", "a if a > b else b", (("comparison", "a if a < b else b"),), (((2, 5), 5), ((9, 1), 9))),
    Function(
        "smaller", "a, b", "a if a < b else b", (("comparison", "a if a > b else b"),), (((2, 5), 2), ((9, 1), 1))
    ),
    Function("same", "a, b", "a == b", (("comparison", "a != b"),), (((4, 4), True), ((4, 5), False))),
    Function("first", "a", "a[0]", (("index", "a[1]"), ("index", "a[-1]")), ((("xyz",), "x"), (("pqr",), "p"))),
    Function("last", "a", "a[-1]", (("index", "a[0]"), ("index", "a[1]")), ((("xyz",), "z"), (("pqr",), "r"))),
    Function("rest", "a", "a[1:]", (("index", "a[2:]"), ("index", "a[:1]")), ((("xyz",), "yz"), (("pqr",), "qr"))),
    Function("double", "a", "a * 2", (("constant", "a * 3"), ("operator", "a + 2")), (((5,), 10), ((9,), 18))),
    Function("half", "a", "a // 2", (("constant", "a // 3"), ("operator", "a * 2")), (((8,), 4), ((20,), 10))),
    Function(
        "is_zero", "a", "a == 0", (("comparison", "a != 0"), ("constant", "a == 1")), (((0,), True), ((1,), False))
    ),
    Function("is_even", "a", "a % 2 == 0", (("comparison", "a % 2 != 0"),), (((4,), True), ((7,), False))),
)
