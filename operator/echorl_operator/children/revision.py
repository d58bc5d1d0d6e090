"""The ControllerRevision that freezes a rendering: while an attempt lives, its children are applied from there.

So a new version of the operator, or a default that appears in the CRD, takes effect at the next attempt or edit.
"""

from collections.abc import Mapping
from typing import Any

from echorl_manifest.models.run import EchoRLRun
from echorl_operator import names
from echorl_operator.children.rendering import Rendering
from echorl_operator.children.sizes import largest_fields
from echorl_operator.children.target import Object, canonical_json, hashed, owner_reference

FORMAT = 1
LARGEST = 2**20
"""Bytes of the whole object as JSON; etcd takes little more."""


class RevisionTooLarge(ValueError):
    """The rendering does not fit into one object of the API server."""


def to_revision(rendering: Rendering, run: EchoRLRun, attempt: int, generation: int) -> Object:
    """The ControllerRevision of an attempt; to be created, never changed.

    Args:
        rendering: to freeze.
        run: that it was rendered from.
        attempt: that begins, or goes on.
        generation: of the run since when the attempt is rendered so. The rendering's own, unless an attempt begins
            with an older rendering.

    Raises:
        RevisionTooLarge: it has more than 1 MiB.
        ValueError: the rendering is another run's.
    """
    if run.metadata.name != rendering.run:
        raise ValueError(f"rendering of run {rendering.run}; this is run {run.metadata.name}")
    labels = {
        names.LABEL_NAME: names.APP_NAME,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_RUN: rendering.run,
        names.LABEL_RUN_UID: rendering.uid,
        names.LABEL_ATTEMPT: str(attempt),
    }
    body = hashed(
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": names.revision(rendering.run, attempt, generation),
                "namespace": rendering.namespace,
                "labels": labels,
                "ownerReferences": [owner_reference(rendering.run, rendering.uid)],
            },
            "revision": attempt,
            "data": {"format": FORMAT, "rendering": rendering.to_json()},
        }
    )
    size = len(canonical_json(body).encode())
    if size > LARGEST:
        largest = largest_fields(rendering.spec)[0][0]
        raise RevisionTooLarge(
            f"run {rendering.run}: its rendering takes {size} bytes, accepted are {LARGEST}; "
            f"shorten args, templates or egress rules of the manifest; the largest field is {largest}"
        )
    return body


def from_revision(body: Mapping[str, Any]) -> Rendering:
    """The rendering that a ControllerRevision holds.

    Raises:
        ValueError: it is none of ours, or of a format that this operator does not know.
    """
    name = (body.get("metadata") or {}).get("name")
    data = body.get("data")
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        stated = data.get("format") if isinstance(data, Mapping) else data
        raise ValueError(f"ControllerRevision {name}: found format {stated!r}, accepted is {FORMAT}")
    rendering = data.get("rendering")
    if not isinstance(rendering, Mapping):
        raise ValueError(f"ControllerRevision {name}: has no rendering")
    try:
        return Rendering.from_json(rendering)
    except ValueError as error:
        raise ValueError(f"ControllerRevision {name}: {error}") from error
