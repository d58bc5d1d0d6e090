"""How ranks of a pod ended, and which end says why."""

from collections.abc import Sequence
from dataclasses import dataclass

from echorl_core.names import NEVER_RESTARTED, ExitCode


@dataclass(frozen=True)
class End:
    """How a rank ended by itself, or because we asked it to."""

    rank: int
    status: int
    """Exit code; negative: the signal that ended it."""
    asked: bool = False
    """It was told to end before."""

    @property
    def code(self) -> int:
        """Exit code as a shell writes it."""
        return self.status if self.status >= 0 else 128 - self.status


def telling(ends: Sequence[End]) -> End | None:
    """The end that says most about the cause; None if every rank finished, or ended because it was told to.

    A code that is never restarted outweighs crashes: when one rank finds a NaN, its peers often crash first. Among
    crashes a code that is not 1 does, because 1 is also what a peer's broken connection gives; then the earliest.

    Args:
        ends: in the order in which they were seen.
    """
    for end in ends:
        if end.code in NEVER_RESTARTED:
            return end
    failed = [end for end in ends if end.code != ExitCode.OK and not end.asked]
    return next((end for end in failed if end.code != ExitCode.CRASH), failed[0] if failed else None)
