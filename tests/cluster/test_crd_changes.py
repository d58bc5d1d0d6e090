"""What may change on a stored run, by the API server's word, agrees with the table of effects."""

import copy

import pytest

from echorl_manifest import load
from echorl_manifest.mutability import EFFECTS, Effect, effect_of_change
from echorl_testing.cluster.api import ApiError
from echorl_testing.kube.run_objects import Runs, causes, install_crd
from echorl_testing.manifests.documents import full, shortest, with_value

TRAIN, EVAL = "spec.environments.train", "spec.environments.eval"
REFUSED = [
    ("spec.model.name", "/models/other", 'found "/models/other"; accepted: "/models/policy"'),
    ("spec.model.renderer", "llama-3", 'accepted: "qwen3"'),
    ("spec.model.renderer", None, 'found "auto"; accepted: "qwen3"'),
    ("spec.model.dtype", "float32", 'accepted: "bfloat16"'),
    ("spec.model.lora", {"rank": 8}, "found another value; accepted: the value that it was made with"),
    ("spec.seed", 8, "found 8; accepted: 7"),
    ("spec.seed", None, "found 42; accepted: 7"),
    ("spec.storage.size", "2Ti", 'found "2Ti"; accepted: "1Ti"'),
    ("spec.storage.size", None, 'found nothing; accepted: "1Ti"'),
    ("spec.storage", None, 'found nothing; accepted: "1Ti"'),
    ("spec.storage.storageClassName", "slow", 'accepted: "fast"'),
    ("spec.trainer.optimizer.type", "sgd", 'found "sgd"; accepted: "adamw"'),
    ("spec.trainer.optimizer.stateDtype", "int8", 'found "int8"; accepted: "bfloat16"'),
    ("spec.trainer.optimizer.stateDtype", None, 'found "float32"; accepted: "bfloat16"'),
    (f"{TRAIN}.1.type", "import:my_code.environments:other", 'accepted: "import:my_code.environments:maze"'),
    (f"{EVAL}.0.type", "builtin:digits", 'accepted: "builtin:terminal"'),
]
WHERE = {
    "spec.storage": "spec.storage.size",
    f"{TRAIN}.1.type": f"{TRAIN}[1].type",
    f"{EVAL}.0.type": f"{EVAL}[0].type",
}


@pytest.fixture(scope="module")
def runs(api):
    install_crd(api)
    runs = Runs(api, "default")
    for document in (full(), shortest()):
        api.delete(f"{runs.path}/{document['metadata']['name']}")
        runs.created(document)
    yield runs
    for document in (full(), shortest()):
        api.delete(f"{runs.path}/{document['metadata']['name']}")


@pytest.mark.parametrize(("path", "value", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_with_the_value_that_stands(runs, path, value, words):
    changed = with_value(full(), path, value)
    assert effect_of_change(full()["spec"], changed["spec"])[0] is Effect.IMMUTABLE
    with pytest.raises(ApiError) as caught:
        runs.replaced(changed)
    found = causes(caught.value)
    expected = f"cannot change while the run exists; {words}" if words.startswith("found") else words
    assert any(cause.field == WHERE.get(path, path) and expected in cause.message for cause in found), found


def test_a_claim_cannot_be_named_later(runs):
    with pytest.raises(ApiError) as caught:
        runs.replaced(with_value(shortest(), "spec.storage.claimName", "mine"))
    (cause,) = causes(caught.value)
    assert cause.field == "spec.storage.claimName"
    assert 'found "mine"; accepted: no value' in cause.message


def test_every_immutable_entry_is_tried():
    tried = {path.replace(".0", "[]").replace(".1", "[]") for path, _, _ in REFUSED}
    # No stored run can have another value of these: what would differ is refused from the start.
    tried |= {"spec.algorithm.mode", "spec.model.revision"}
    assert {path for path, effect in EFFECTS.items() if effect is Effect.IMMUTABLE} <= tried


def test_the_revision_of_a_hub_model_stays(runs, api):
    document = with_value(with_value(shortest(), "metadata.name", "hub"), "spec.model.revision", "v1")
    runs.created(document)
    try:
        for other in ("v2", None):
            with pytest.raises(ApiError, match='accepted: "v1"'):
                runs.replaced(with_value(document, "spec.model.revision", other))
    finally:
        api.delete(f"{runs.path}/hub")


def test_an_image_may_become_another_one_and_nothing_else(runs, api):
    image = "openenv:registry.example.org/games/wordle:1"
    document = with_value(with_value(shortest(), "metadata.name", "games"), f"{TRAIN}.0.type", image)
    runs.created(document)
    try:
        runs.replaced(with_value(document, f"{TRAIN}.0.type", f"{image}2"))
        with pytest.raises(ApiError, match=f'accepted: "{image}"'):
            runs.replaced(with_value(document, f"{TRAIN}.0.type", "openenv:http://games:8000"))
    finally:
        api.delete(f"{runs.path}/games")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.maxSteps", 7),
        ("spec.maxSteps", None),
        ("spec.trainer.replicas", 4),
        ("spec.trainer.optimizer.lr", 1),
        ("spec.inference.replicas", 9),
        ("spec.storage.retain", True),
        ("spec.suspend", True),
        (f"{TRAIN}.0.args", {"split": "other"}),
        (f"{TRAIN}.2", {"name": "more", "type": "builtin:digits"}),
        (EVAL, []),
        ("spec.stallPolicy", None),
        ("spec.resume", {"policy": "Auto"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_accepted(runs, path, value):
    old, new = full(), with_value(full(), path, value)
    if path == "spec.trainer.replicas":
        new = with_value(new, "spec.trainer.parallel", {})
    assert effect_of_change(old["spec"], new["spec"])[0] in {Effect.LIVE, Effect.NEW_ATTEMPT}
    assert runs.replaced(new)


def test_environments_may_change_places(runs):
    changed = copy.deepcopy(full())
    changed["spec"]["environments"]["train"].reverse()
    assert runs.replaced(changed)


@pytest.mark.parametrize("document", [full(), shortest()], ids=["full", "shortest"])
def test_defaults_written_out_are_no_change(runs, document):
    resolved = load(document).spec.model_dump(mode="json", by_alias=True)
    assert runs.replaced({**document, "spec": resolved})
    without_null = load(document).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert runs.replaced({**document, "spec": without_null})
