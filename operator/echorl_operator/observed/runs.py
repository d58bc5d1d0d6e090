"""An EchoRLRun as the operator sees it: the user's spec, and what its own status says from earlier passes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run; the key of the work queue."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One EchoRLRun. ``spec`` and ``status`` are the API server's, undecoded: an old object may break today's rules."""

    key: RunKey
    uid: str
    resource_version: str
    generation: int
    created_at: float
    deleted_at: float | None
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)

    def block(self, key: str) -> Mapping[str, Any]:
        """A block of ``spec`` as it was written; empty if it is left out, or null, which means the same."""
        block = self.spec.get(key)
        return block if isinstance(block, Mapping) else {}
