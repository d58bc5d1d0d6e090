"""Random changes of a run's spec, drawn from the schema that the API server has.

Every node of the schema can be set, changed, taken out or given an item; most changes that are handed out keep the
manifest valid, some do not. The same seed gives the same changes.
"""

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from echorl_manifest.mutability import Effect, effect_of_change
from echorl_manifest.validation import parsed
from echorl_operator import names
from echorl_operator.children.assembly import cluster_problems
from echorl_operator.settings import Settings
from echorl_testing.kube.run_objects import CRD_FILE

Spec = dict[str, Any]
Path = tuple[str | int, ...]

INVALID_SHARE = 0.1
"""Of changes that are handed out whatever the rules between fields say of them."""
_TRIES = 60
_LARGEST: dict[str, int] = {
    "spec.trainer.replicas": 3,
    "spec.trainer.gpusPerReplica": 4,
    "spec.inference.replicas": 3,
    "spec.inference.autoscale.min": 3,
    "spec.inference.autoscale.max": 3,
    "spec.inference.gpusPerReplica": 4,
}
"""Sizes of pods and gangs that are played."""
_TEXTS: dict[str, tuple[str, ...]] = {
    "name": ("one", "two", "three"),
    "type": (
        *("builtin:digits", "builtin:terminal", "import:my.environments:maze", "openenv:http://hub:8000"),
        *("verifiers:owner/sums", "nemo-gym:http://gym:9000", "openenv:echo", "builtin:none"),
        *("openenv:example.org/games:1", "openenv:example.org/games:2"),
    ),
    "episodeTimeout": ("45s", "10m", "1h30m", "soon"),
    # Far above what a played orchestrator takes between two steps.
    "noStepFor": ("20m", "30m", "1h30m"),
    "size": ("100Gi", "1Ti", "0"),
    "limit": ("8Gi", "24Gi", "0"),
    "image": ("example.org/role:1", "example.org/role:2"),
    "import": ("my.hooks:make", "no import path"),
    "path": ("/code", "code/run", "../up"),
    "renderer": ("auto", "qwen3"),
    "extraArgs": ("--enable-prefix-caching", "--max-num-seqs=32", "--model=other"),
    "interface": ("eth0", "ib0", "=eth0"),
    "resource": ("rdma/hca_shared_devices_a", "example.org/roce", "none"),
    "hcas": ("mlx5_0", "mlx5_1:1"),
    "url": ("https://teacher.example/v1",),
}
_PLAIN = ("a", "bash", "python")
_OBJECTS: dict[str, tuple[Any, ...]] = {
    "template": (
        {"spec": {"nodeSelector": {"pool": "a"}}},
        {"spec": {"tolerations": [{"key": "pool", "operator": "Exists"}]}},
        {"metadata": {"annotations": {"team": "x"}}},
        {"spec": {"hostNetwork": True}},
        {},
    ),
    "egress": (
        {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        {"ports": [{"port": 443, "protocol": "TCP"}]},
        {"to": [{"ipBlock": {"cidr": "no address"}}]},
    ),
    "args": ({}, {"split": "train"}, {"deep": {"list": [1, "x"]}}),
    "kwargs": ({}, {"x": 1}),
}
_LONG = (600, 3600, 86400)
_INTEGERS: dict[str, tuple[int, ...]] = {
    # A shorter deadline would end the run in the midst of the others' changes.
    "activeDeadlineSeconds": _LONG,
    "ttlSecondsAfterFinished": _LONG,
    "maxModelLen": (128, 256, 512),
    "seqLen": (256, 512, 1024),
    "groupSize": (1, 2, 4),
    "batchSize": (4, 8, 16, 15),
}


def schema() -> Spec:
    """The OpenAPI schema of ``spec`` in the CRD."""
    crd = yaml.safe_load(CRD_FILE.read_text())
    found: Spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def patterns(node: Spec, at: str = "spec") -> Iterator[str]:
    """Every path of a schema; ``[]`` stands for any item."""
    yield at
    for key, inner in node.get("properties", {}).items():
        yield from patterns(inner, f"{at}.{key}")
    if "items" in node:
        yield from patterns(node["items"], f"{at}[]")


@dataclass(frozen=True)
class SpecChange:
    """From one spec to another."""

    before: Spec
    after: Spec
    pattern: str
    """Path in the schema that was changed."""
    valid: bool
    """Whether ``after`` keeps all rules."""


def is_valid(spec: Spec, settings: Settings) -> bool:
    """Whether a run of this spec can be carried out in a cluster."""
    document = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": "one"},
        "spec": spec,
    }
    run, problems = parsed(document)
    return run is not None and not problems and not cluster_problems(run, settings)


class SpecChanges:
    """A source of changes."""

    def __init__(self, seed: str, settings: Settings) -> None:
        self._chance, self._settings = random.Random(seed), settings
        self._schema = schema()

    def change(self, spec: Spec) -> SpecChange:
        """One change of ``spec``, nearly always one that changes something."""
        valid_wanted = self._chance.random() >= INVALID_SHARE
        after, pattern = spec, "spec"
        for _ in range(_TRIES):
            after, pattern = self._changed(spec)
            if after == spec or (self._means_the_same(spec, after) and self._chance.random() < 0.9):
                continue
            valid = is_valid(after, self._settings)
            if valid or not valid_wanted:
                return SpecChange(spec, after, pattern, valid)
        return SpecChange(spec, spec, pattern, is_valid(spec, self._settings))

    def _means_the_same(self, before: Spec, after: Spec) -> bool:
        return effect_of_change(before, after)[0] is Effect.NONE

    def _changed(self, spec: Spec) -> tuple[Spec, str]:
        after = copy.deepcopy(spec)
        node, holder, pattern = self._schema, after, "spec"
        while True:
            key = self._chance.choice(sorted(node["properties"]))
            inner, at = node["properties"][key], f"{pattern}.{key}"
            known = holder.get(key)
            if "properties" in inner and self._chance.random() < 0.85:
                holder[key] = {} if known is None else known
                node, holder, pattern = inner, holder[key], at
                continue
            items = inner.get("items", {})
            if "properties" in items and known and self._chance.random() < 0.8:
                node, holder, pattern = items, self._chance.choice(known), f"{at}[]"
                continue
            self._set(holder, key, inner, at, required=key in node.get("required", ()))
            return after, at

    def _set(self, holder: Spec, key: str, node: Spec, at: str, *, required: bool) -> None:
        if key in holder and not required and self._chance.random() < 0.3:
            del holder[key]
        elif "items" in node and isinstance(holder.get(key), list) and holder[key] and self._chance.random() < 0.5:
            held = holder[key]
            held.pop(self._chance.randrange(len(held)))
        elif "items" in node and self._chance.random() < 0.5:
            holder[key] = [*(holder.get(key) or []), self._value(node["items"], f"{at}[]", key)]
        else:
            holder[key] = self._value(node, at, key)

    def _value(self, node: Spec, at: str, key: str) -> Any:
        if "enum" in node:
            return self._chance.choice(node["enum"])
        if node.get("x-kubernetes-int-or-string"):
            return self._chance.choice(["auto", 1, 2, "never"])
        if node.get("x-kubernetes-preserve-unknown-fields"):
            return copy.deepcopy(self._chance.choice(_OBJECTS.get(key, ({},))))
        kind = node["type"]
        if kind == "object":
            return self._object(node, at)
        if kind == "array":
            count = self._chance.randint(node.get("minItems", 0), min(node.get("maxItems", 2), 2))
            return [self._value(node["items"], f"{at}[]", key) for _ in range(count)]
        if kind == "boolean":
            return self._chance.random() < 0.5
        return self._number(node, at, key) if kind in ("integer", "number") else self._text(key)

    def _object(self, node: Spec, at: str) -> Spec:
        found: Spec = {}
        for key, inner in sorted(node.get("properties", {}).items()):
            if key in node.get("required", ()) or self._chance.random() < 0.15:
                found[key] = self._value(inner, f"{at}.{key}", key)
        return found

    def _number(self, node: Spec, at: str, key: str) -> Any:
        if key in _INTEGERS and node["type"] == "integer":
            return self._chance.choice(_INTEGERS[key])
        low = node.get("minimum", 0)
        high = min(node.get("maximum", low + 40), low + 40, _LARGEST.get(at, low + 40))
        if node["type"] == "integer":
            return self._chance.choice([low, low + 1 if low < high else low, self._chance.randint(low, high)])
        return self._chance.choice([float(low), float(high), round(self._chance.uniform(low, high), 3)])

    def _text(self, key: str) -> str:
        return self._chance.choice(_TEXTS.get(key, _PLAIN))
