"""Kubernetes quantities such as ``500m`` and ``16Gi``: what they stand for, and how the API server writes them back.

The API server writes ``1Gi`` for ``1024Mi`` and ``2`` for ``2000m``. Desired objects are compared with live ones, so
what differs only in notation would be applied for ever. The rules are those of apimachinery's ``resource.Quantity``:
no digits after the point, the largest suffix that loses nothing, the suffix family (1024 or 1000) of the input, except
that binary values below 1024 or with fractions turn decimal.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

# More digits of an exponent than anybody means would be computed for ever.
_FORM = re.compile(
    r"(?P<number>[+-]?(\d+(\.\d*)?|\.\d+))(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,2})?", re.ASCII
)
BINARY: Mapping[str, int] = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
DECIMAL: Mapping[str, int] = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_LARGEST = 2**63 - 1
"""The API server caps larger values to this."""


def value(quantity: str | int | float) -> Fraction:
    """The number that a quantity stands for.

    Raises:
        ValueError: it is none.
    """
    return parsed(quantity)[0]


def parsed(quantity: object) -> tuple[Fraction, str]:
    """The number, and the notation's family: ``binary``, ``decimal`` or ``exponent``.

    Raises:
        ValueError: it is no quantity.
    """
    text = str(quantity).strip() if isinstance(quantity, str | int | float) else ""
    parts = None if isinstance(quantity, bool) else _parsed(text)
    if parts is None:
        raise ValueError(f"found {quantity!r}, accepted is a Kubernetes quantity such as 500m or 16Gi")
    return parts


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Fraction, str] | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    number, suffix = Fraction(match["number"]), match["suffix"] or ""
    if suffix in BINARY:
        number, family = number * 1024 ** BINARY[suffix], "binary"
    elif suffix in DECIMAL:
        number, family = number * Fraction(1000) ** DECIMAL[suffix], "decimal"
    else:
        number, family = number * Fraction(10) ** int(suffix[1:]), "exponent"
    return min(number, Fraction(_LARGEST)), family


def canonical(quantity: str | int | float) -> str:
    """The quantity in the API server's notation; finer than a billionth is rounded up, as there.

    Raises:
        ValueError: it is no quantity.
    """
    return _canonical(*parsed(quantity))


@lru_cache(maxsize=4096)
def _canonical(number: Fraction, family: str) -> str:
    if family == "binary" and not (abs(number) < 1024 or number.denominator > 1):
        return _with_suffix(number, 1024, {power: suffix for suffix, power in BINARY.items()} | {0: ""})
    if family == "exponent":
        return _with_suffix(number, 1000, {power: f"e{3 * power}" if power else "" for power in range(-3, 7)})
    return _with_suffix(number, 1000, {power: suffix for suffix, power in DECIMAL.items()})


def total(base: str, each: str, count: int) -> str:
    """``base + count * each``, in the notation of ``base``.

    Raises:
        ValueError: one is no quantity.
    """
    number = value(base) + count * value(each)
    binary = "binary" in (parsed(base)[1], parsed(each)[1])
    return canonical(f"{number / 1024}Ki") if binary and number % 1024 == 0 else canonical(_decimal(number))


def _with_suffix(number: Fraction, base: int, suffixes: Mapping[int, str]) -> str:
    """The largest power of ``base`` that divides ``number``; below the smallest it is rounded away from 0."""
    if number == 0:
        return "0"
    for power in sorted(suffixes, reverse=True):
        digits = number / Fraction(base) ** power
        if digits.denominator == 1:
            return f"{digits.numerator}{suffixes[power]}"
    smallest = min(suffixes)
    digits = abs(number) / Fraction(base) ** smallest
    rounded = Fraction(-(-digits.numerator // digits.denominator)) * Fraction(base) ** smallest
    return _with_suffix(rounded if number > 0 else -rounded, base, suffixes)


def _decimal(number: Fraction) -> str:
    """The number as text, to a billionth."""
    return f"{-(-number * 10**9 // 1)}n"


def readable(resource: str, number: Fraction) -> str:
    """An amount of a resource for people: ``8 nvidia.com/gpu``, ``1.5 cpu``, ``12.0 GiB memory``."""
    if resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-"):
        return f"{float(number / 2**30):.1f} GiB {resource}"
    return f"{float(number):g} {resource}"
