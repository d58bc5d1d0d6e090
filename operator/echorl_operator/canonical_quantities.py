"""Quantities as the API server writes them back: ``1Gi`` for ``1024Mi``, ``2`` for ``2000m``.

Desired objects are compared with live ones, so what differs only in notation would be applied for ever. The rules are
those of apimachinery's ``resource.Quantity``: no digits after the point, the largest suffix that loses nothing, the
suffix family (1024 or 1000) of the input, except that binary values below 1024 or with fractions turn decimal.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from echorl_operator.quantities import BINARY, DECIMAL, parsed, value


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
