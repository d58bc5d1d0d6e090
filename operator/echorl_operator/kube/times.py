"""Wall-clock times as the API writes them. For people and other clients; nothing here decides by them."""

from datetime import UTC, datetime


def micro_now() -> str:
    """Now as a ``MicroTime``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
