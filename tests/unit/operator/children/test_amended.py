"""An edit that applies live changes what it is about, whoever rendered the attempt; all else stays as it is."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from echorl_core.config import OrchestratorConfig
from echorl_operator.children import Rendering, inference_deployment, orchestrator_config, orchestrator_pod, trainer_set
from echorl_operator.children.amended import amended
from echorl_operator.children.rendering import config_text
from echorl_operator.children.target import config_file, config_map_name
from echorl_operator.settings import RoleDefaults, Settings
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.operator.rendered import manifest, rendered

OLDER = Settings(operator_version="0.0.9", inference=RoleDefaults(requests={"cpu": "3"}), bind_address="::")
LIVE = {
    "spec.maxSteps": 77,
    "spec.checkpoint": {"interval": 3},
    "spec.inference.replicas": 5,
    "spec.inference.extraArgs": ["--enable-prefix-caching"],
    "spec.inference.image": "example.org/engine:2",
    "spec.inference.template": {"spec": {"nodeSelector": {"pool": "a"}}},
    "spec.egress": [{"ports": [{"port": 9999}]}],
    "spec.failurePolicy": {"maxRestarts": 9},
    "spec.ttlSecondsAfterFinished": 9,
}
DOCUMENTS = {"shortest": shortest(), "full": full(), "two-pods": manifest("two-pods")}


@pytest.mark.parametrize("path", LIVE)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_of_one_version_and_settings_it_is_the_new_rendering(name: str, path: str) -> None:
    before = rendered(DOCUMENTS[name])
    after = rendered(with_value(DOCUMENTS[name], path, LIVE[path]))
    assert amended(before, before, after) == after


def edited(path: str, frozen: Rendering | None = None) -> tuple[Rendering, Rendering]:
    """What an older version rendered, and what an edit under today's makes of it."""
    document = DOCUMENTS["two-pods"]
    before = rendered(document, settings=OLDER) if frozen is None else frozen
    return before, amended(before, rendered(document), rendered(with_value(document, path, LIVE[path])))


def images(rendering: Rendering) -> set[str]:
    pods = [
        rendering.orchestrator,
        rendering.prepare,
        *(part["spec"]["template"] for part in (rendering.trainer, rendering.inference)),
    ]
    found = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image for image in found if image.startswith("echorl/")}


@pytest.mark.parametrize("path", [path for path in LIVE if path != "spec.inference.image"])
def test_images_and_defaults_of_an_older_installation_stay(path: str) -> None:
    before, after = edited(path)
    assert images(after) == images(before)
    assert {image.partition(":")[2] for image in images(after)} == {"0.0.9"}
    # A trainer's config says how many steps there are; its pods that run keep theirs.
    assert path == "spec.maxSteps" or trainer_set(after, 1, 2) == trainer_set(before, 1, 2)
    assert (after.operator_version, after.spec) == (
        "0.0.9",
        rendered(with_value(DOCUMENTS["two-pods"], path, LIVE[path])).spec,
    )
    (container,) = after.inference["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "3"


@pytest.mark.parametrize("path", ["spec.inference.replicas", "spec.maxSteps", "spec.egress"])
def test_engines_of_an_older_version_are_not_replaced_by_an_edit_of_something_else(path: str) -> None:
    before, after = edited(path)
    assert inference_deployment(after, 3) == inference_deployment(before, 3)


def test_an_image_that_the_edit_names_is_the_engines() -> None:
    before, after = edited("spec.inference.image")
    template = after.inference["spec"]["template"]["spec"]
    assert template["containers"][0]["image"] == "example.org/engine:2"
    old = copy.deepcopy(before.inference["spec"]["template"]["spec"])
    old["containers"][0]["image"] = "example.org/engine:2"
    assert template == old


def test_a_policy_that_the_edit_opens_is_changed_and_the_others_are_not() -> None:
    before, after = edited("spec.egress")
    policies = [
        {one["metadata"]["name"]: one for one in part.common if one["kind"] == "NetworkPolicy"}
        for part in (before, after)
    ]
    changed = {name for name, body in policies[1].items() if policies[0][name] != body}
    assert changed == {f"two-pods-{role}" for role in ("orchestrator", "trainer", "prepare")}
    assert {"ports": [{"port": 9999}]} in policies[1]["two-pods-trainer"]["spec"]["egress"]


def without_a_field(rendering: Rendering) -> Rendering:
    """As a version rendered it whose orchestrator knows no GPUs of engines: an image of it would refuse the field."""
    content = json.loads(config_text(rendering, "orchestrator.json"))
    name = config_map_name("two-pods", "orchestrator.json", content)
    del content["engines"]["gpus"]
    other = config_map_name("two-pods", "orchestrator.json", content)
    changed: dict[str, Any] = json.loads(json.dumps(rendering.to_json()).replace(name, other))
    for body in changed["common"]:
        if "orchestrator.json" in body.get("data", {}):
            body["data"]["orchestrator.json"] = config_file(content)
    return Rendering.from_json(changed)


def test_a_config_is_of_the_version_that_reads_it() -> None:
    before, after = edited("spec.maxSteps", without_a_field(rendered(DOCUMENTS["two-pods"], settings=OLDER)))
    old, new = (json.loads(config_text(part, "orchestrator.json")) for part in (before, after))
    assert new == old | {"max_steps": 77}
    assert "gpus" not in new["engines"]
    name = config_map_name("two-pods", "orchestrator.json", new)
    assert name in json.dumps(orchestrator_pod(after, 1))
    assert name in [body["metadata"]["name"] for body in after.common]
    assert isinstance(orchestrator_config(after), OrchestratorConfig)
    assert orchestrator_pod(after, 1)["spec"]["containers"][0]["image"] == "echorl/orchestrator:0.0.9"


def test_a_pod_whose_config_stays_does_so_whatever_its_parts_are_called() -> None:
    before = without_a_field(rendered(DOCUMENTS["two-pods"], settings=OLDER))
    called = json.dumps(before.orchestrator).replace('"name": "config"', '"name": "of-an-older-version"')
    before, after = edited("spec.inference.replicas", replace(before, orchestrator=json.loads(called)))
    assert "of-an-older-version" in json.dumps(after.orchestrator)
    assert after.orchestrator == before.orchestrator


def test_children_that_only_one_version_has_come_with_a_new_attempt() -> None:
    document = DOCUMENTS["two-pods"]
    base, after = rendered(document), rendered(with_value(document, "spec.maxSteps", 77))
    (first, *others) = base.common
    newer = replace(base, common=others)
    made = amended(newer, base, after)
    assert first not in made.common
    older = {**first, "metadata": {**first["metadata"], "name": "of-an-older-version"}}
    made = amended(replace(base, common=[older, *base.common]), base, after)
    assert older in made.common
