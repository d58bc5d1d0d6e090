"""How much memory a GPU has: as the user says, or as the manifest asks for its nodes."""

import re
from collections.abc import Mapping
from typing import Any

from echorl_cli.plan.model_shape import GIB
from echorl_manifest.models.base import quantity_number

_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_MEMORY_LABEL = "nvidia.com/gpu.memory"
"""In MiB, by the GPU operator's feature discovery."""
_GIB = {"b300": 270, "gb300": 270, "b200": 180, "gb200": 180, "h200": 140, "gh200": 96, "l40s": 45, "l40": 45, "l4": 22}
"""Of products whose names do not say it."""


def gpu_bytes(text: str) -> int:
    """The bytes that ``141GiB``, ``141Gi`` or ``80GB`` stands for.

    Raises:
        ValueError: the text is no such amount.
    """
    found = int(quantity_number(text.strip().removesuffix("B")))
    if found < GIB:
        raise ValueError("less than 1 GiB")
    return found


def gpu_of_template(template: Mapping[str, Any]) -> tuple[int, str] | None:
    """Bytes of the GPU that a pod's node selector asks for, and the label that says so; None where none does."""
    spec = template.get("spec")
    selector = spec.get("nodeSelector") if isinstance(spec, Mapping) else None
    if not isinstance(selector, Mapping):
        return None
    memory = selector.get(_MEMORY_LABEL)
    if isinstance(memory, str) and re.fullmatch("[1-9][0-9]{0,8}", memory):
        return int(memory) * 2**20, f"{_MEMORY_LABEL}: {memory}"
    for label in _LABELS:
        product = selector.get(label)
        if isinstance(product, str) and (gib := _gib(product)) is not None:
            return gib * GIB, f"{label}: {product}"
    return None


def _gib(product: str) -> int | None:
    if (found := re.search(r"(?<![0-9])([1-9][0-9]{0,3})gb\b", product.lower())) is not None:
        return int(found[1])
    words = re.split(r"[^a-z0-9]+", product.lower())
    return next((_GIB[word] for word in words if word in _GIB), None)
