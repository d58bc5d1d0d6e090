"""How long a run will still take, by the steps that it made last."""

from collections import deque

_WINDOW = 20


class Eta:
    """Seconds per step over the last steps. An attempt that goes back to an earlier step starts it anew."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_WINDOW + 1)

    def note(self, step: int, at_s: float) -> None:
        """Note that the run stood at ``step`` at that time."""
        if self._seen and step < self._seen[-1][0]:
            self._seen.clear()
        if not self._seen or step > self._seen[-1][0]:
            self._seen.append((step, at_s))

    def eta_s(self, max_steps: int, now_s: float) -> float | None:
        """Estimate the seconds until the last step; None before two steps were seen."""
        if len(self._seen) < 2:
            return None
        (first, begun), (last, ended) = self._seen[0], self._seen[-1]
        left = (max_steps - last) * (ended - begun) / (last - first)
        return max(0.0, left - (now_s - ended))


def clock(seconds: float | None) -> str:
    """Write seconds as ``1:02:03`` or ``2:03``; a dash for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
