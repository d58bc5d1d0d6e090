"""How a command's answer is written."""

from enum import StrEnum


class Notation(StrEnum):
    """Values of the option ``-o``."""

    TEXT = "text"
    JSON = "json"
