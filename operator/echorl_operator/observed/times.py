"""Times as Kubernetes writes them: RFC 3339, UTC, whole seconds."""

from datetime import UTC, datetime

_FIRST_YEAR = 1970
"""Times before are nobody's, and the first thousand years have no four digits when they are written."""


def to_text(seconds: float | None) -> str | None:
    """Seconds since the epoch as text, rounded down."""
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_text(text: object) -> float | None:
    """Seconds since the epoch; None if it is no time with a zone."""
    if not isinstance(text, str):
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if read.tzinfo is None or read.year < _FIRST_YEAR else read.timestamp()
