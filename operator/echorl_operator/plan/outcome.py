"""What the steps of a pass answer: ``ensure_*`` makes something so, ``handle_*`` and ``enforce_*`` see to an event."""

from enum import Enum, auto


class Outcome(Enum):
    """What one step of a pass leaves to the steps after it."""

    DONE = auto()
    """Nothing is left to do here: the next step may follow."""
    PENDING = auto()
    """Something was asked for or is waited for: a later pass goes on from here."""
    DECIDED = auto()
    """It is decided what becomes of the attempt or of the run: no other step may follow in this pass."""
