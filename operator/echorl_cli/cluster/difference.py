"""Two renderings of a run as a unified diff: each role's config, then each child. Pure."""

import difflib
import json
from collections.abc import Iterator

from echorl_cli.children import as_yaml, children
from echorl_operator import names
from echorl_operator.children import Rendering
from echorl_operator.children.target import Object
from echorl_operator.names import PodRole

_CONFIG_MAP = "ConfigMap"


def difference(before: Rendering, after: Rendering, attempt: int, *, old: str, new: str) -> str:
    """A unified diff; empty if nothing differs.

    Args:
        before: as the attempt is frozen.
        after: as it would be rendered now.
        attempt: whose children are compared, on both sides.
        old: what the first is called, in the head of each part.
        new: the second.

    Raises:
        ValueError: a rendering is of a spec that today's rules refuse.
    """
    left, right = _documents(before, attempt), _documents(after, attempt)
    return "".join(
        line
        for title in {**left, **right}
        for line in difflib.unified_diff(
            _lines(left.get(title)), _lines(right.get(title)), f"{old}: {title}", f"{new}: {title}"
        )
    )


def _documents(rendering: Rendering, attempt: int) -> dict[str, Object]:
    """What is compared, by a title that does not change when a role's config does."""
    bodies = children(rendering, attempt)
    configs = {title: content for body in bodies if body["kind"] == _CONFIG_MAP for title, content in _configs(body)}
    return configs | {_title(body): _shown(body) for body in bodies}


def _configs(body: Object) -> Iterator[tuple[str, Object]]:
    for file, text in body["data"].items():
        yield f"config of {PodRole(file.removesuffix('.json'))}", json.loads(text)


def _title(body: Object) -> str:
    kind, metadata = body["kind"], body["metadata"]
    # Its name has the hash of its content.
    return f"{kind} {metadata['labels'][names.LABEL_ROLE] if kind == _CONFIG_MAP else metadata['name']}"


def _shown(body: Object) -> Object:
    """Without what only repeats a difference: the hash, and configs inside ConfigMaps. No data of Secrets ever."""
    metadata = body["metadata"]
    notes = {key: text for key, text in metadata.get("annotations", {}).items() if key != names.ANNOTATION_HASH}
    rest = {key: part for key, part in metadata.items() if key != "annotations"}
    hidden = {"data", "stringData"} if body["kind"] in {_CONFIG_MAP, "Secret"} else set()
    shown = {key: part for key, part in body.items() if key not in hidden}
    return {**shown, "metadata": {**rest, "annotations": notes} if notes else rest}


def _lines(body: Object | None) -> list[str]:
    # The API server may give the keys of a stored object back in another order.
    text = "" if body is None else as_yaml([json.loads(json.dumps(body, sort_keys=True))]).removeprefix("---\n")
    return text.splitlines(keepends=True)
