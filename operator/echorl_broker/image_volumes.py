"""What a sandbox's pod can have as volumes: images, read-only, in folders of it. Pure."""

import posixpath
from collections.abc import Mapping

from echorl_broker.profile import FILES, PROGRAM
from echorl_operator.kube import errors

MOST = 8
_KEPT = (posixpath.dirname(PROGRAM), FILES, "/proc", "/sys", "/dev")
"""The daemon's folders and the kernel's."""
OLD = (
    "this cluster has no image volumes, or not switched on: they are of Kubernetes from 1.35, or from 1.31 with the "
    "feature gate ImageVolume"
)


def refusal(volumes: Mapping[str, str]) -> str | None:
    """Why a pod cannot have these, by their paths inside; None if it can."""
    if len(volumes) > MOST:
        return f"volumes: found {len(volumes)}, accepted are {MOST}"
    for path, image in sorted(volumes.items()):
        if posixpath.normpath(path) != path or path == "/" or ":" in path or any(_meet(path, kept) for kept in _KEPT):
            accepted = f"folders by their shortest path, without ':', apart from {', '.join(_KEPT)}"
            return f"volumes: found {path!r:.200}, accepted are {accepted}"
        if not image or image.startswith(("/", ".")) or image.split() != [image]:
            return f"volumes[{path:.200}]: found {image!r:.200}, accepted is the reference of a container image"
    for path in volumes:
        outer = next((other for other in volumes if other != path and _meet(path, other)), None)
        if outer is not None:
            return f"volumes: found {path:.200} and {outer:.200}, accepted are folders that are not in each other"
    return None


def is_of_volumes(error: errors.ApiError) -> bool:
    """Whether the API server does not know what an image volume is, or drops it: it then sees a volume of no kind."""
    unknown = 'unknown field "spec.' in error.message and '.image"' in error.message
    return unknown or any(cause.field.startswith("spec.volumes[") for cause in error.causes)


def _meet(path: str, other: str) -> bool:
    """Whether one is the other, or in it."""
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
