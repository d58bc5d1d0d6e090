"""Which cluster and namespace a command means: the same files, options and order as kubectl."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_cli.yaml_text import MAX_TEXT_BYTES, parse_yaml
from echorl_core.capped import read_capped

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
DEFAULT_NAMESPACE = "default"


class NoSuchPlace(Exception):
    """There is no such kubeconfig or context; the message says what there is."""


@dataclass(frozen=True)
class Place:
    """The cluster and namespace that a command looks at, as the user names them."""

    kubeconfig: str | None
    """One file, or several as in ``KUBECONFIG``; None: a pod's own service account."""
    context: str | None
    namespace: str


def place(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    environ: Mapping[str, str] = os.environ,
) -> Place:
    """Where a command looks, from its options: ``--kubeconfig``, ``--context``, ``-n``.

    Raises:
        NoSuchPlace: there is none.
    """
    named = str(kubeconfig) if kubeconfig is not None else environ.get("KUBECONFIG", "")
    if not named and context is None and environ.get(_IN_CLUSTER):
        return Place(None, None, namespace or _own_namespace())
    named = named or str(Path.home() / ".kube" / "config")
    contexts, current = _contexts(named)
    chosen = context or current
    if chosen is None:
        raise NoSuchPlace(f"{named}: found no current context, accepted is --context with one of {_listed(contexts)}")
    if chosen not in contexts:
        raise NoSuchPlace(f"--context: found {chosen!r}, accepted is one of {_listed(contexts)} (from {named})")
    return Place(named, chosen, namespace or str(contexts[chosen].get("namespace") or DEFAULT_NAMESPACE))


def _contexts(named: str) -> tuple[dict[str, Mapping[str, Any]], str | None]:
    """Contexts by name and the current one; of several files the first one that says something counts."""
    files = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    existing = [file for file in files if os.path.isfile(file)]  # noqa: PTH113 - false, whatever the name
    if not existing:
        raise NoSuchPlace(f"found no kubeconfig {named}; accepted is --kubeconfig, KUBECONFIG or ~/.kube/config")
    contexts: dict[str, Mapping[str, Any]] = {}
    current = None
    for file in existing:
        content = _content(file)
        current = current or content.get("current-context") or None
        for entry in content.get("contexts") or ():
            contexts.setdefault(str(entry["name"]), entry.get("context") or {})
    return contexts, current


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = parse_yaml(read_capped(file, MAX_TEXT_BYTES).decode())
    except (OSError, ValueError) as error:
        raise NoSuchPlace(f"{file}: cannot be read as a kubeconfig: {error}") from error
    if not isinstance(content, Mapping):
        raise NoSuchPlace(f"{file}: found {type(content).__name__}, accepted is a kubeconfig")
    contexts = content.get("contexts") or []
    if not isinstance(contexts, list) or not all(map(_is_context, contexts)):
        raise NoSuchPlace(f"{file}: found contexts that are no list of names and contexts, accepted is a kubeconfig")
    return content


def _is_context(entry: Any) -> bool:
    named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
    return named and isinstance(entry.get("context"), Mapping | None)


def _listed(contexts: Mapping[str, Any]) -> str:
    return ", ".join(sorted(contexts)) or "none"


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE
