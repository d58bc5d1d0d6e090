"""spec.environments: what the model plays and is measured in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields import batches, echo, sampling
from echorl_cli.convert.fields.algorithm import Chosen, chosen, put_advantage
from echorl_cli.convert.fields.forms import label
from echorl_cli.convert.keys.environments import EVAL, TRAIN
from echorl_cli.convert.settings import Settings

NO_LIMIT = "24h"
"""Stands for an episode that may take as long as it likes, which the manifest cannot say."""
GATE = "advantage_range"
NO_HARNESS = "a task set without one is played by bash in prime-rl, and by a chat with the task's tools (null) here"
NO_LIBRARY = "in a cluster: an image that has verifiers and your environments (docs/environments.md)"


@dataclass
class Scene:
    """What environments of a run share while they are written."""

    settings: Settings
    draft: ManifestDraft
    types: Mapping[str, str]
    """Types given by the user, by name or id."""
    run: Chosen
    names: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    """Entries of ``types`` that an environment had."""
    of_verifiers: bool = False
    """An environment is played by that library."""

    def given(self, *words: str | None) -> str:
        """The type that the user gave to one of these words; empty if none."""
        typed = [word for word in words if word is not None and word in self.types]
        self.used.update(typed[:1])
        return self.types[typed[0]] if typed else ""


@dataclass(frozen=True)
class Entry:
    """One environment: where it stands in the keys and in the manifest."""

    kind: str
    """Table of its kind, with what environments share."""
    base: str
    to: str
    key: str
    """Key of what names its code; empty if nothing does."""
    identity: str
    """Value of that key."""


def build(scene: Scene) -> None:
    """All environments, train before eval."""
    settings = scene.settings
    for kind, name in ((TRAIN, "train"), (EVAL, "eval")):
        for index in range(settings.items(f"{kind}.source")):
            base, to = f"{kind}.source[{index}]", f"spec.environments.{name}[{index}]"
            scene.draft.document["spec"].setdefault("environments", {}).setdefault(name, []).append({})
            entry = Entry(kind, base, to, *_identity(scene, base))
            _environment(scene, entry)
            if kind == TRAIN:
                _training(scene, index, base, to)
            else:
                _evaluation(scene, base, to)
        settings.value(f"{kind}.source")
    if scene.of_verifiers:
        scene.draft.tell(Kind.TO_FILL_IN, "spec.orchestrator.image", NO_LIBRARY)


def _environment(scene: Scene, entry: Entry) -> None:
    settings, draft, base, to = scene.settings, scene.draft, entry.base, entry.to
    _name(scene, entry)
    _type(scene, entry)
    draft.put(f"{to}.args", _arguments(scene, base) or None)
    _timeout(settings, draft, base, to)
    _workers(settings, draft, base, to)
    own = ("max_retries", "env.agent.retries.max_retries", "env.retries.max_retries")
    retries = draft.first(*(f"{base}.{key}" for key in own)) or settings.first(f"{entry.kind}.max_retries")
    draft.put(f"{to}.maxRetries", settings.count(retries) if retries else None, retries or "")
    most, key = batches.most_at_once(settings)
    if settings.peek("orchestrator.max_concurrent") is not None:
        key = "orchestrator.max_concurrent"
        most = settings.count(key)
    draft.put(f"{to}.maxConcurrent", most, key)
    sampling.build(settings, draft, f"{entry.kind}.sampling", f"{base}.sampling", f"{to}.sampling")


def _timeout(settings: Settings, draft: ManifestDraft, base: str, to: str) -> None:
    path, keys = f"{to}.episodeTimeout", (f"{base}.env.timeout.episode", f"{base}.env.agent.timeout.rollout")
    key = draft.first(*keys)
    seconds = settings.number(key) if key else None
    draft.put(path, NO_LIMIT if seconds is None else f"{seconds:.15g}s", key or "")
    if key is None:
        text = f"prime-rl lets an episode run without limit; {NO_LIMIT} stands, and a hung one keeps its place so long"
        draft.tell(Kind.DEFAULT, path, text)


def _identity(scene: Scene, base: str) -> tuple[str, str]:
    """Key and value of what names the environment's code; a task set wins over an id."""
    key = scene.draft.first(f"{base}.env.taskset.id", f"{base}.env.id", f"{base}.legacy.id")
    return (key, scene.settings.text(key) or "") if key else ("", "")


def _name(scene: Scene, entry: Entry) -> None:
    settings, draft, own_key = scene.settings, scene.draft, f"{entry.base}.name"
    own = settings.text(own_key)
    given = own or entry.identity.partition("@")[0].rpartition("/")[2]
    name = label(given)
    if entry.kind == EVAL and name in scene.names:
        name = f"{name[:58]}-eval"
    scene.names.add(name)
    draft.put(f"{entry.to}.name", name or None, own_key if own else entry.key)
    if own and name != own:
        draft.say(Kind.CHANGED, own_key, f"{name}: lower-case letters, digits and '-', unique over train and eval")


def _type(scene: Scene, entry: Entry) -> None:
    settings, draft, identity, path = scene.settings, scene.draft, entry.identity, f"{entry.to}.type"
    if not identity:
        draft.error(entry.base, "an environment with env.taskset.id or id", "nothing says which code it is")
        return
    given = scene.given(settings.text(f"{entry.base}.name"), identity)
    draft.put(path, given or f"verifiers:{identity}", "" if given else entry.key)
    scene.of_verifiers = scene.of_verifiers or not given
    harness = f"{entry.base}.env.agent.harness.id"
    if not given and entry.key.endswith(".taskset.id") and settings.peek(harness) is None:
        draft.tell(Kind.DEFAULT, f"{entry.to}.args.harness", NO_HARNESS)


def _arguments(scene: Scene, base: str) -> dict[str, Any]:
    """Arguments of the environment, and its task set and harness as two more; without secrets."""

    def part(key: str) -> dict[str, Any]:
        return dict(scene.draft.clean(key, scene.settings.table(key) or {}))

    arguments = {**part(f"{base}.legacy.args"), **part(f"{base}.env.args")}
    taskset, harness = part(f"{base}.env.taskset"), part(f"{base}.env.agent.harness")
    taskset.pop("id", None)
    if taskset:
        arguments["taskset"] = taskset
    if harness:
        arguments["harness"] = harness
    return arguments


def _workers(settings: Settings, draft: ManifestDraft, base: str, to: str) -> None:
    pool = f"{base}.serve.pool"
    kind, workers = settings.text(f"{pool}.type"), settings.count(f"{pool}.num_workers")
    if kind not in {None, "static", "elastic"}:
        draft.error(f"{pool}.type", "static, elastic", NO_VERSION)
    elif kind != "elastic":
        draft.put(f"{to}.workers", workers, f"{pool}.num_workers")


def _training(scene: Scene, index: int, base: str, to: str) -> None:
    settings, draft = scene.settings, scene.draft
    ratios = "orchestrator.buffer.env_ratios"
    shared = settings.value(ratios)
    if shared is not None and not (isinstance(shared, list) and len(shared) == settings.items(f"{TRAIN}.source")):
        draft.error(ratios, "a list with a number for each environment")
    elif shared is not None:
        draft.put(f"{to}.weight", shared[index], ratios)
    draft.put(f"{to}.weight", settings.number(f"{base}.ratio"), f"{base}.ratio")
    size = settings.count(f"{base}.group_size")
    if size is not None and size != batches.group_size(settings)[0]:
        draft.put(f"{to}.algorithm.groupSize", size, f"{base}.group_size")
    _curriculum(settings, draft, f"{to}.curriculum")
    _gates(settings, draft, base, to)
    choice = _algorithm(scene, base, to)
    echo.build(settings, draft, base, f"{to}.echo", choice)
    if settings.flag("orchestrator.multi_agent.drop_judge"):
        draft.put(f"{to}.dropMembers", ["judge"], "orchestrator.multi_agent.drop_judge")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _curriculum(settings: Settings, draft: ManifestDraft, to: str) -> None:
    """A pool beyond a threshold was never sampled from."""
    for bound, field_name, keep in (("easy", "easyFrom", "keepEasy"), ("hard", "hardTo", "keepHard")):
        key = f"orchestrator.buffer.{bound}_threshold"
        threshold = settings.number(key)
        draft.put(f"{to}.{field_name}", threshold, key)
        draft.put(f"{to}.{keep}", None if threshold is None else 0.0, key)


def _gates(settings: Settings, draft: ManifestDraft, base: str, to: str) -> None:
    """A gate that keeps groups without advantage out of batches is a filter; others are told."""
    gates = f"{base}.curriculum.gates"
    for name in settings.names(gates):
        gate = f"{gates}.{name}"
        bounds = [settings.peek(f"{gate}.{key}") or 0 for key in ("reject_min", "reject_max")]
        if settings.peek(f"{gate}.type") == GATE and bounds == [0, 0]:
            settings.whole(gate)
            rule = {"type": "zeroAdvantage", "enforce": True, "stage": "group"}
            inherited = draft.document["spec"]["algorithm"].get("filters", [{"type": "zeroAdvantage"}])
            if rule not in inherited:
                draft.put(f"{to}.algorithm.filters", [rule, *inherited], gate)


def _algorithm(scene: Scene, base: str, to: str) -> Chosen:
    """What the environment says of its own, or inherits."""
    draft, own = scene.draft, chosen(scene.settings, scene.draft, base)
    if own is None:
        return scene.run
    if own.mode != scene.run.mode:
        draft.refuse(own.source, scene.run.mode, "all environments of a run have one mode")
    elif own.advantage != scene.run.advantage:
        put_advantage(draft, f"{to}.algorithm.advantage", own)
    return own


def _evaluation(scene: Scene, base: str, to: str) -> None:
    settings, draft = scene.settings, scene.draft
    for name, field_name in (("interval", "interval"), ("group_size", "groupSize")):
        key = settings.first(f"{base}.{name}", f"{EVAL}.{name}")
        draft.put(f"{to}.{field_name}", settings.count(key) if key else None, key or "")
    key = settings.first(*(f"{place}.{name}" for place in (base, EVAL) for name in ("num_examples", "select.limit")))
    examples = settings.count(key) if key else -1
    if examples in {-1, None}:
        text = "prime-rl plays all tasks of the environment; the manifest counts them, 64 by default"
        draft.tell(Kind.TO_FILL_IN, f"{to}.numExamples", text)
    else:
        draft.put(f"{to}.numExamples", examples, key or "")
    skip = settings.flag(f"{EVAL}.skip_first_step")
    if skip:
        draft.put(f"{to}.atStart", False, f"{EVAL}.skip_first_step")
