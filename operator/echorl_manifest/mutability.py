"""What a change of the spec does to a run that exists: one table, for the operator, the CRD's CEL and the reference.

A path covers everything below it unless a longer one is in the table too. ``[]`` stands for any item of a list.
What applies live inside a role is what ``echorl_core.live`` can carry to the orchestrator.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, get_args, get_origin

from echorl_manifest.models.base import ApiModel
from echorl_manifest.models.environments import OPENENV_IMAGE
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.schema import bare, is_model, keys


class Effect(IntEnum):
    """What a change does, from the least to the most."""

    NONE = 0
    """Nothing changed: defaults that are written out, or null for a key that is left out, are no change."""
    LIVE = 1
    """The run takes it over; no trainer process is restarted. Engines whose pods change are replaced one by one."""
    NEW_ATTEMPT = 2
    """The gang is restarted at its last checkpoint, as a new attempt."""
    IMMUTABLE = 3
    """Refused."""

    @property
    def words(self) -> str:
        """For the reference and ``kubectl explain``."""
        return {
            Effect.NONE: "does nothing",
            Effect.LIVE: "applies live",
            Effect.NEW_ATTEMPT: "restarts the gang",
            Effect.IMMUTABLE: "is refused",
        }[self]


EFFECTS: Mapping[str, Effect] = {
    "spec": Effect.NEW_ATTEMPT,
    "spec.model.name": Effect.IMMUTABLE,
    "spec.model.revision": Effect.IMMUTABLE,
    "spec.model.tokenSecretName": Effect.LIVE,
    "spec.model.renderer": Effect.IMMUTABLE,
    "spec.model.dtype": Effect.IMMUTABLE,
    "spec.model.lora": Effect.IMMUTABLE,
    "spec.maxSteps": Effect.LIVE,
    "spec.seed": Effect.IMMUTABLE,
    "spec.algorithm.mode": Effect.IMMUTABLE,
    "spec.environments.train[].type": Effect.IMMUTABLE,
    "spec.environments.train[].server": Effect.LIVE,
    "spec.environments.train[].sampling.temperature": Effect.LIVE,
    "spec.environments.train[].sampling.maxCompletionTokens": Effect.LIVE,
    "spec.environments.eval[].type": Effect.IMMUTABLE,
    "spec.environments.eval[].server": Effect.LIVE,
    "spec.environments.eval[].sampling.temperature": Effect.LIVE,
    "spec.environments.eval[].sampling.maxCompletionTokens": Effect.LIVE,
    "spec.environments.eval[].interval": Effect.LIVE,
    # Its state stands in the checkpoints.
    "spec.trainer.optimizer.type": Effect.IMMUTABLE,
    "spec.trainer.optimizer.stateDtype": Effect.IMMUTABLE,
    "spec.trainer.elastic": Effect.LIVE,
    "spec.inference": Effect.LIVE,
    # What the trainer publishes says how far engines may be from it.
    "spec.inference.quantization": Effect.NEW_ATTEMPT,
    # The orchestrator's: it reads its config once.
    "spec.inference.extraHeaders": Effect.NEW_ATTEMPT,
    "spec.checkpoint.interval": Effect.LIVE,
    "spec.checkpoint.keepLast": Effect.LIVE,
    "spec.checkpoint.keepEvery": Effect.LIVE,
    "spec.egress": Effect.LIVE,
    "spec.storage": Effect.IMMUTABLE,
    "spec.storage.retain": Effect.LIVE,
    "spec.suspend": Effect.LIVE,
    "spec.activeDeadlineSeconds": Effect.LIVE,
    "spec.ttlSecondsAfterFinished": Effect.LIVE,
    "spec.failurePolicy": Effect.LIVE,
    # Every rank's own watchdog is started with noStepFor.
    "spec.stallPolicy.action": Effect.LIVE,
}


REPLACED: Mapping[str, str] = dict.fromkeys(
    ("spec.environments.train[].type", "spec.environments.eval[].type"), OPENENV_IMAGE
)
"""What begins a new attempt in spite of its effect, where both values match: another image of the same environment."""


def effect_of(path: str) -> Effect:
    """Effect of a change at a path of the manifest, ``spec.environments.train[].weight``."""
    while path not in EFFECTS:
        path = path[:-2] if path.endswith("[]") else path.rpartition(".")[0]
    return EFFECTS[path]


@dataclass(frozen=True)
class Change:
    """One place where two specs differ."""

    path: str
    """``spec.environments.train[terminal].weight``: items of named lists by their names."""
    effect: Effect


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Where two specs differ in what they mean. They need not be valid: stored ones may break today's rules."""
    return list(_changes(EchoRLRunSpec, old, new, "spec", "spec"))


def effect_of_change(old_spec: Mapping[str, Any], new_spec: Mapping[str, Any]) -> tuple[Effect, list[str]]:
    """What the change of a spec does, and the paths that it is due to. Both specs as the API server holds them."""
    found = changes(old_spec, new_spec)
    effect = max((change.effect for change in found), default=Effect.NONE)
    return effect, [change.path for change in found if change.effect is effect]


def _changes(annotation: Any, old: Any, new: Any, path: str, pattern: str) -> Iterator[Change]:
    kind = bare(annotation)
    if is_model(kind) and isinstance(old, Mapping) and isinstance(new, Mapping):
        fields = _fields(kind)
        for key in (*fields, *sorted((old.keys() | new.keys()) - fields.keys())):
            inner, default = fields.get(key, (Any, None))
            before, after = (default if side.get(key) is None else side[key] for side in (old, new))
            yield from _changes(inner, before, after, f"{path}.{key}", f"{pattern}.{key}")
    elif _is_named_list(kind) and _has_names(old) and _has_names(new):
        yield from _items_changes(get_args(kind)[0], old, new, path, pattern)
    elif not _same(kind, old, new):
        values = (str(old), str(new))
        replaced = pattern in REPLACED and all(re.search(REPLACED[pattern], value) for value in values)
        yield Change(path, Effect.NEW_ATTEMPT if replaced else effect_of(pattern))


@lru_cache(maxsize=256)
def _fields(kind: type[ApiModel]) -> dict[str, tuple[Any, Any]]:
    """A model's fields by key: annotation, and default as JSON."""
    return {
        key: (field.rebuild_annotation(), _plain(field.get_default(call_default_factory=True)))
        for key, field in keys(kind).items()
    }


def _items_changes(annotation: Any, old: Any, new: Any, path: str, pattern: str) -> Iterator[Change]:
    before, after = ({item["name"]: item for item in side} for side in (old, new))
    for name in {**before, **after}:
        if name in before and name in after:
            yield from _changes(annotation, before[name], after[name], f"{path}[{name}]", f"{pattern}[]")
        else:
            yield Change(f"{path}[{name}]", effect_of(f"{pattern}[]"))
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield Change(path, effect_of(pattern))


def _is_named_list(kind: Any) -> bool:
    if get_origin(kind) is not tuple:
        return False
    item = bare(get_args(kind)[0])
    return is_model(item) and "name" in item.model_fields


def _has_names(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    names = [item.get("name") for item in value]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _same(kind: Any, old: Any, new: Any) -> bool:
    """Whether two values mean the same; models inside lists and mappings with their defaults."""
    core = bare(kind)
    if is_model(core) and isinstance(old, Mapping) and isinstance(new, Mapping):
        return not list(_changes(core, old, new, "spec", "spec"))
    if get_origin(core) is tuple and isinstance(old, list) and isinstance(new, list):
        item = get_args(core)[0]
        return len(old) == len(new) and all(_same(item, *pair) for pair in zip(old, new, strict=True))
    if get_origin(core) is dict and isinstance(old, Mapping) and isinstance(new, Mapping):
        item = get_args(core)[1]
        return old.keys() == new.keys() and all(_same(item, old[key], new[key]) for key in old)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _plain(default: Any) -> Any:
    """A default as JSON; None for a field that must be set."""
    if isinstance(default, ApiModel):
        return default.model_dump(mode="json", by_alias=True)
    if isinstance(default, tuple):
        return [_plain(item) for item in default]
    return default if isinstance(default, dict | str | int | float) else None
