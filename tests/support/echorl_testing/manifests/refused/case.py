"""A manifest with one thing wrong."""

import re
from dataclasses import dataclass
from typing import Any

from echorl_testing.manifests.documents import full, with_value

ENV = "spec.environments.train.0"
EVAL = {"name": "held-out", "type": "builtin:digits"}


@dataclass(frozen=True)
class Refused:
    """A manifest that breaks one rule."""

    changes: list[tuple[str, Any]]
    """To a manifest that sets every field."""
    path: str
    """That the problem must name."""
    accepted: str
    """Words that must stand in what is accepted."""
    id: str
    server_path: str = ""
    """Path that the API server's error names instead, where it cannot name an item of a list."""
    server_says: str = ""
    """Words in the API server's error instead."""

    def document(self) -> dict[str, Any]:
        """The manifest."""
        document = full()
        for path, value in self.changes:
            document = with_value(document, path, value)
        return document


def indexed(path: str) -> str:
    """A dotted path as problems write it: ``train.0`` is ``train[0]``."""
    return re.sub(r"\.(\d+)", r"[\1]", path)
