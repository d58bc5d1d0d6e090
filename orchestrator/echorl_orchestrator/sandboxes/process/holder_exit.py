"""How a guard says why its sandbox ended."""

EXPIRED = 75
"""Its time was over."""
