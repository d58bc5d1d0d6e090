"""Values that change their form."""

import re
from typing import Any

from echorl_cli.convert.draft import Kind, ManifestDraft
from echorl_cli.convert.settings import Settings


def label(text: str, longest: int = 63) -> str:
    """Text as a name may hold it: lower-case letters, digits and ``-``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-")


def import_path(path: str | None) -> str | None:
    """``pkg.module.name`` as ``pkg.module:name``; a path with a colon as it is."""
    if path is None or ":" in path or "." not in path:
        return path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"


def hook(settings: Settings, draft: ManifestDraft, base: str, contract: str) -> dict[str, Any]:
    """``import`` and ``kwargs`` of the user's function in the table ``base``; nothing where ``import_path`` is not set.

    A line says ``contract``: what EchoRL calls the function with and wants back, and the page that says more.
    """
    key = f"{base}.import_path"
    path = import_path(settings.text(key))
    if path is None:
        return {}
    draft.say(Kind.CHANGED, key, f"the function has to be adapted: {contract}")
    kwargs = settings.table(f"{base}.kwargs")
    return {"import": path, "kwargs": kwargs} if kwargs else {"import": path}


def tidy(quotient: float) -> float:
    """A quotient of two round numbers without the last digits, in which division leaves its error."""
    return float(f"{quotient:.12g}")
