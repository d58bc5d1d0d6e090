"""Trees of prime-rl's keys, as its TOML files give them."""

import copy
from typing import Any

from echorl_cli.convert.conversion import Conversion, Options, converted
from echorl_manifest.schema import Location

TYPES = {"words": "builtin:digits", "held-out": "builtin:digits"}


def smallest() -> dict[str, Any]:
    """A run with one train and one eval environment."""
    return {
        "max_steps": 100,
        "orchestrator": {
            "train": {"source": [{"name": "words", "legacy": {"id": "words"}}]},
            "eval": {"num_examples": 8, "source": [{"name": "held-out", "legacy": {"id": "words"}}]},
        },
    }


def concrete(path: str) -> str:
    """A path of the tables with every ``[]`` at its first item."""
    return path.replace("[]", "[0]")


def with_value(tree: dict[str, Any], where: Location, value: Any) -> dict[str, Any]:
    """A copy with one more value; a list on the way gets its first item."""
    tree = copy.deepcopy(tree)
    below: Any = tree
    for depth, step in enumerate(where[:-1]):
        if isinstance(step, int):
            below = below[step]
        elif isinstance(where[depth + 1], int):
            below = below.setdefault(step, [])
            if not below:
                below.append({})
        elif isinstance(below.get(step), dict):
            below = below[step]
        else:
            below[step] = {}
            below = below[step]
    below[where[-1]] = copy.deepcopy(value)
    return tree


def converted_copy(tree: dict[str, Any], **options: Any) -> Conversion:
    """The conversion of a copy, with types for the environments of ``smallest``."""
    return converted(copy.deepcopy(tree), Options(**{"types": TYPES, **options}))
