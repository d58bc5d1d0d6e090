"""Writes lengths of time as people say them in a sentence."""


def waited(seconds: float) -> str:
    """Write a wait as ``4 min``, ``over 20 min`` or ``over 3 h``: the longer the coarser, so that it rarely changes."""
    if seconds < 60:
        return "less than a minute"
    minutes = int(seconds // 60)
    if minutes < 10:
        return f"{minutes} min"
    if minutes < 120:
        return f"over {minutes // 10 * 10} min"
    return f"over {minutes // 60} h"


def span(seconds: float) -> str:
    """Write a duration as ``42 s``, ``4 min 10 s`` or ``3 d 4 h``: in two units, rounded down."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {unit}")
        elif parts:
            break
        left %= size
    return " ".join(parts[:2]) or "0 s"
