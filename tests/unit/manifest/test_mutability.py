"""What a change of the spec does: defaults written out are no change, every field has an effect, the gravest wins."""

import copy
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.live import applied, settings_of
from echorl_manifest import EchoRLRun, load
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.mutability import EFFECTS, Change, Effect, changes, effect_of, effect_of_change
from echorl_manifest.schema import bare, is_model, keys
from echorl_testing.manifests.documents import full, shortest, with_value


def leaves(model, path="spec"):
    """Every field of a model that holds no model, with ``[]`` for items."""
    for key, field in keys(model).items():
        kind = bare(field.annotation)
        inner = kind if is_model(kind) else next((bare(one) for one in getattr(kind, "__args__", ())), None)
        if is_model(inner) and not str(kind).startswith("dict"):
            yield from leaves(inner, f"{path}.{key}" + ("" if is_model(kind) else "[]"))
        else:
            yield f"{path}.{key}"


LEAVES = list(leaves(EchoRLRunSpec))


def test_table_names_only_places_that_there_are():
    for path in EFFECTS:
        assert path == "spec" or any(leaf == path or leaf.startswith((f"{path}.", f"{path}[")) for leaf in LEAVES), path


def test_no_entry_repeats_what_holds_anyway():
    for path, effect in EFFECTS.items():
        if path != "spec":
            assert effect is not effect_of(path.rpartition(".")[0]), path


@pytest.mark.parametrize(
    ("path", "effect"),
    [
        ("spec.maxSteps", Effect.LIVE),
        ("spec.inference.replicas", Effect.LIVE),
        ("spec.environments.train[].sampling.temperature", Effect.LIVE),
        ("spec.environments.eval[].interval", Effect.LIVE),
        ("spec.environments.eval[].sampling.topP", Effect.NEW_ATTEMPT),
        ("spec.checkpoint.interval", Effect.LIVE),
        ("spec.environments.train[].weight", Effect.NEW_ATTEMPT),
        ("spec.environments.train[]", Effect.NEW_ATTEMPT),
        ("spec.trainer.optimizer.lr", Effect.NEW_ATTEMPT),
        ("spec.trainer.replicas", Effect.NEW_ATTEMPT),
        ("spec.stallPolicy.noStepFor", Effect.NEW_ATTEMPT),
        ("spec.model.name", Effect.IMMUTABLE),
        ("spec.model.maxModelLen", Effect.NEW_ATTEMPT),
        ("spec.storage.size", Effect.IMMUTABLE),
        ("spec.storage.retain", Effect.LIVE),
    ],
)
def test_effects(path, effect):
    assert effect_of(path) is effect


@pytest.mark.parametrize("document", [shortest(), full()], ids=["shortest", "full"])
def test_defaults_written_out_are_no_change(document):
    resolved = load(document).spec.model_dump(mode="json", by_alias=True)
    assert effect_of_change(document["spec"], resolved) == (Effect.NONE, [])
    assert effect_of_change(resolved, document["spec"]) == (Effect.NONE, [])


@pytest.mark.parametrize(
    ("path", "value", "effect", "told"),
    [
        ("spec.maxSteps", 301, Effect.LIVE, "spec.maxSteps"),
        ("spec.maxSteps", None, Effect.LIVE, "spec.maxSteps"),
        ("spec.trainer.optimizer.lr", 1, Effect.NEW_ATTEMPT, "spec.trainer.optimizer.lr"),
        ("spec.environments.train.0.weight", 3, Effect.NEW_ATTEMPT, "spec.environments.train[terminal].weight"),
        (
            "spec.environments.train.0.sampling.temperature",
            0.9,
            Effect.LIVE,
            "spec.environments.train[terminal].sampling.temperature",
        ),
        ("spec.environments.train.0.echo", None, Effect.NEW_ATTEMPT, "spec.environments.train[terminal].echo"),
        ("spec.environments.train.0.args.split", "x", Effect.NEW_ATTEMPT, "spec.environments.train[terminal].args"),
        ("spec.environments.train.1.type", "import:a:b", Effect.IMMUTABLE, "spec.environments.train[own].type"),
        ("spec.algorithm.filters", [], Effect.NEW_ATTEMPT, "spec.algorithm.filters"),
        ("spec.trainer.template.spec", {}, Effect.NEW_ATTEMPT, "spec.trainer.template"),
        ("spec.inference.template.spec", {}, Effect.LIVE, "spec.inference.template"),
        ("spec.suspend", True, Effect.LIVE, "spec.suspend"),
        ("spec.storage.claimName", "c", Effect.IMMUTABLE, "spec.storage.claimName"),
        ("spec.keyOfAnotherVersion", 1, Effect.NEW_ATTEMPT, "spec.keyOfAnotherVersion"),
        ("spec.trainer.replicas", "of another type", Effect.NEW_ATTEMPT, "spec.trainer.replicas"),
    ],
)
def test_one_change(path, value, effect, told):
    old = full()
    assert effect_of_change(old["spec"], with_value(old, path, value)["spec"]) == (effect, [told])


def test_items_of_named_lists_are_matched_by_name():
    old = full()["spec"]
    new = copy.deepcopy(old)
    new["environments"]["train"].reverse()
    assert changes(old, new) == [Change("spec.environments.train", Effect.NEW_ATTEMPT)]
    del new["environments"]["train"][0]
    new["environments"]["train"].append({"name": "more", "type": "builtin:digits"})
    assert changes(old, new) == [
        Change("spec.environments.train[own]", Effect.NEW_ATTEMPT),
        Change("spec.environments.train[more]", Effect.NEW_ATTEMPT),
    ]


def test_the_gravest_effect_is_told_with_its_paths():
    new = with_value(with_value(full(), "spec.maxSteps", 1), "spec.trainer.compile", False)
    assert effect_of_change(full()["spec"], new["spec"]) == (Effect.NEW_ATTEMPT, ["spec.trainer.compile"])
    new = with_value(with_value(new, "spec.seed", 8), "spec.model.dtype", "float32")
    assert effect_of_change(full()["spec"], new["spec"]) == (Effect.IMMUTABLE, ["spec.model.dtype", "spec.seed"])


def test_numbers_are_compared_as_numbers_and_truth_is_none():
    assert changes({"seed": 1}, {"seed": 1.0}) == []
    assert changes({"seed": 1}, {"seed": True}) == [Change("spec.seed", Effect.IMMUTABLE)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
SPECS = st.fixed_dictionaries({}, optional=dict.fromkeys(keys(EchoRLRunSpec), JSON))


@given(old=SPECS, new=SPECS)
@settings(max_examples=200, deadline=None)
def test_specs_that_break_every_rule_are_compared(old, new):
    effect, paths = effect_of_change(old, new)
    assert (effect is Effect.NONE) == (paths == [])
    assert effect_of_change(old, old) == (Effect.NONE, [])
    assert effect_of_change(new, old)[0] is effect


IMAGE = "openenv:registry.example.org/games/wordle:1"


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (IMAGE, f"{IMAGE}2", Effect.NEW_ATTEMPT),
        (IMAGE, "openenv:http://games:8000", Effect.IMMUTABLE),
        ("openenv:http://games:8000", "openenv:http://games:8001/chess", Effect.IMMUTABLE),
        ("openenv:http://games:8000", IMAGE, Effect.IMMUTABLE),
        ("builtin:terminal", IMAGE, Effect.IMMUTABLE),
    ],
)
@pytest.mark.parametrize("kind", ["train", "eval"])
def test_only_an_image_may_become_another_one(kind, before, after, effect):
    old, new = (with_value(full(), f"spec.environments.{kind}.0.type", one)["spec"] for one in (before, after))
    assert effect_of_change(old, new)[0] is effect


LIVE_EDITS = [
    ("spec.maxSteps", 7),
    ("spec.environments.train.0.sampling.temperature", 0.5),
    ("spec.environments.train.1.sampling", {"maxCompletionTokens": 77}),
    ("spec.environments.eval.0.sampling.temperature", 1),
    ("spec.environments.eval.0.sampling.maxCompletionTokens", 78),
    ("spec.environments.eval.0.interval", 3),
    ("spec.environments.train.0.server", {"replicas": 3}),
    ("spec.environments.eval.0.server", {"memory": "8Gi"}),
    ("spec.checkpoint", {**full()["spec"]["checkpoint"], "interval": 7, "keepLast": 5, "keepEvery": 14}),
    ("spec.trainer.elastic", {"minReplicas": 1}),
    ("spec.inference.network.host", True),
    ("spec.inference.replicas", 9),
    ("spec.inference.tensorParallel", 1),
    ("spec.inference.extraArgs", []),
    ("spec.inference.template", {"spec": {"nodeSelector": {"gpu": "h100"}}}),
    ("spec.egress", []),
    ("spec.storage.retain", True),
    ("spec.suspend", True),
    ("spec.activeDeadlineSeconds", 5),
    ("spec.ttlSecondsAfterFinished", None),
    ("spec.failurePolicy.maxRestarts", 9),
    ("spec.stallPolicy.action", "Fail"),
    ("spec.model.tokenSecretName", "hub"),
]


@pytest.mark.parametrize(("path", "value"), LIVE_EDITS, ids=lambda value: str(value)[:60])
def test_the_roles_can_take_over_what_applies_live(path, value):
    old = full()
    if path.endswith(".server"):
        old = with_value(old, path.replace(".server", ".type"), IMAGE)
    new = with_value(old, path, value)
    assert effect_of_change(old["spec"], new["spec"])[0] is Effect.LIVE
    before, after = (
        role_configs(load(document), replace(example_placement(load(document)), engine_names=("engines:8000",)))
        for document in (old, new)
    )
    assert applied(before.orchestrator, settings_of(after.orchestrator, 2)) == after.orchestrator
    assert before.trainer.model_copy(update={"max_steps": after.trainer.max_steps}) == after.trainer


def test_every_live_entry_is_among_these_edits():
    edited = {re.sub(r"\.\d+", "[]", path) for path, _ in LIVE_EDITS}
    for entry in (path for path, effect in EFFECTS.items() if effect is Effect.LIVE):
        assert any(path.startswith(entry) or entry.startswith(f"{path}.") for path in edited), entry


def test_metadata_has_no_part_in_it():
    assert all(path.startswith("spec") for path in EFFECTS)
    assert "metadata" in keys(EchoRLRun)
