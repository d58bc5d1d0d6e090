"""How a command's answer is written."""

from enum import StrEnum


class Notation(StrEnum):
    """Of ``-o``."""

    TEXT = "text"
    JSON = "json"
