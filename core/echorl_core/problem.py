"""One thing that is wrong with what a run is to start from: its manifest, its model, its volume, its user's code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong at one place: what was found there, and what would be accepted."""

    path: str
    """``spec.environments.train[0].echo.tool.alpha``."""
    found: str
    """The value, as text."""
    accepted: str
    """In words."""
    reason: str = ""
    """Why, or what was probably meant; may be empty."""

    def __str__(self) -> str:
        """One line."""
        reason = f"{self.reason}; " if self.reason else ""
        return f"{self.path}: {reason}found {self.found}; accepted: {self.accepted}"
