"""Bounds of time that mean a machine that keeps up."""

import os

_SLOWER = 4.0
"""A machine may be so much slower without any load of its own to show for it: others share its processors and disks."""


def stretched(seconds: float) -> float:
    """Four times as many seconds, and more where more processes want to run than there are cores for."""
    return seconds * max(_SLOWER, os.getloadavg()[0] / (os.cpu_count() or 1))
