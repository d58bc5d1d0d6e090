"""One thing that is wrong with what a run is to start from: its manifest, its model, its volume, its user's code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong at one place: what was found there, and what would be accepted."""

    path: str
    """Where it is, such as ``spec.environments.train[0].echo.tool.alpha``."""
    found: str
    """The value that was found, as text."""
    accepted: str
    """What would be accepted, in words."""
    reason: str = ""
    """Why it is wrong, or what was probably meant; may be empty."""

    def __str__(self) -> str:
        """Say all of it in one line."""
        reason = f"{self.reason}; " if self.reason else ""
        return f"{self.path}: {reason}found {self.found}; accepted: {self.accepted}"
