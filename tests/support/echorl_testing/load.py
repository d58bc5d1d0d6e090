"""Bounds of time that mean a machine that keeps up."""

import os


def stretched(seconds: float) -> float:
    """As many seconds, and more where more processes want to run than there are cores for: then all takes longer."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
