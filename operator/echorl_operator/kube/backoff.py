"""Growing waits with jitter, so that many who wait for one thing do not return at once."""

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Doubles from ``first_s`` up to ``longest_s``; each wait is between half and all of it."""

    first_s: float
    longest_s: float
    rng: random.Random = field(default_factory=random.Random)
    tries: int = 0

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self.longest_s, self.first_s * 2.0 ** min(self.tries, 60))
        self.tries += 1
        return ceiling * (0.5 + self.rng.random() / 2)

    def reset(self) -> None:
        """Begin with the shortest wait again: what failed works."""
        self.tries = 0
