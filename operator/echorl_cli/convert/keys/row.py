"""What one key of prime-rl becomes."""

from dataclasses import dataclass
from typing import Any

IMPORT = "`pkg.module.name` becomes `pkg.module:name`; the function is called in another way"


@dataclass(frozen=True)
class Key:
    """One key, or with ``.*`` at its end everything below a table."""

    key: str
    """The key in the spelling that all others are moved to; ``[]`` stands for every item of a list."""
    to: str
    """Fields of the manifest, as text; empty: there is no counterpart."""
    note: str
    """Without counterpart: why. Else how the value is made; empty: it is taken as it is."""
    example: Any
    """A value, for the tests."""
    default: Any = None
    """What prime-rl takes where the key is not set, if EchoRL by itself does something else; None: it does not.

    It is read as if it were set, or told where there is no counterpart.
    """

    @property
    def direct(self) -> bool:
        """Whether the value is taken as it is."""
        return bool(self.to) and not self.note


def same(key: str, to: str, example: Any = 1) -> Key:
    """The value goes to the field ``to`` as it is."""
    return Key(key, to, "", example)


def made(key: str, to: str, how: str, example: Any = 1, default: Any = None) -> Key:
    """The field or fields are made from it, often together with other keys."""
    return Key(key, to, how, example, default)


def none(key: str, why: str, example: Any = 1, default: Any = None) -> Key:
    """A key that has no counterpart; ``why`` is told to the user."""
    return Key(key, "", why, example, default)
