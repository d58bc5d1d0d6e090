"""What stops a conversion."""

from collections.abc import Sequence

from echorl_manifest import Problem


class ConversionError(Exception):
    """Files that cannot be converted; carries every problem that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def refused(key: str, found: str, accepted: str, reason: str = "") -> ConversionError:
    """An error with one problem."""
    return ConversionError([Problem(key, found, accepted, reason)])
