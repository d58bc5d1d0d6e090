"""Trees of prime-rl's keys, as its TOML files give them."""

import copy
import re
from typing import Any

from echorl_cli.convert.conversion import Conversion, Options, converted
from echorl_manifest.schema import Location


class _Everything(dict[str, str]):
    """A type for every environment, whatever it is called."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> str:
        return f"import:ours.code:{re.sub(r'[^a-z]', '_', name.lower())}"


TYPES = _Everything()


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
    """The conversion of a copy, with a type for every environment unless ``options`` name them."""
    return converted(copy.deepcopy(tree), Options(**{"types": TYPES, **options}))
