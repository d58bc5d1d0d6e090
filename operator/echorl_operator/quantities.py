"""What Kubernetes quantities such as ``500m`` and ``16Gi`` stand for."""

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
    found = None if isinstance(quantity, bool) else _parsed(text)
    if found is None:
        raise ValueError(f"found {quantity!r}, accepted is a Kubernetes quantity such as 500m or 16Gi")
    return found


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


def readable(resource: str, number: Fraction) -> str:
    """An amount of a resource for people: ``8 nvidia.com/gpu``, ``1.5 cpu``, ``12.0 GiB memory``."""
    if resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-"):
        return f"{float(number / 2**30):.1f} GiB {resource}"
    return f"{float(number):g} {resource}"
