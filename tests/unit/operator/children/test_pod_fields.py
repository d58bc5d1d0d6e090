"""What single fields of a manifest, or of the installation's settings, change in children."""

import json

import pytest

from echorl_core.config import PrepareConfig
from echorl_manifest.models.runtime import Resume
from echorl_operator import names
from echorl_operator.children import common, orchestrator_config, prepare_pod
from echorl_operator.children.rendering import config_text
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.operator.rendered import SETTINGS, UID, manifest, rendered
from echorl_testing.operator.role_pods import env, main, mounts, overlaid, specs


def test_prepare_is_told_where_the_model_is_and_goes():
    fetched = PrepareConfig.model_validate_json(config_text(rendered(shortest()), "prepare.json"))
    assert (fetched.model.path, fetched.model.store) == ("/volume/runs/shortest/.model", "/volume/models")
    placed = PrepareConfig.model_validate_json(config_text(rendered(full()), "prepare.json"))
    assert (placed.model.path, placed.model.store) == ("/volume/models/policy", None)
    assert placed.python_path == ["/volume/code"]
    assert orchestrator_config(rendered(full())).python_path == ["/code"]


def test_code_of_a_config_map():
    document = with_value(shortest(), "spec.code.configMap", "mine")
    for role, spec in specs(document).items():
        has = role != "inference"
        assert ({"name": "code", "configMap": {"name": "mine"}} in spec["volumes"]) is has
        assert ("/code" in mounts(spec)) is has
        assert (env(spec).get("PYTHONPATH") == "/code") is has


@pytest.mark.parametrize("path", ["~/models/x", "../x", "/a/../../b", "/"])
def test_a_path_that_leaves_the_volume_is_refused(path):
    with pytest.raises(ValueError, match=r"spec\.model\.name: .*the run's volume"):
        rendered(with_value(shortest(), "spec.model.name", path))


def test_the_wandb_key_is_the_orchestrators_alone_and_keeps_no_pod_from_starting():
    document = with_value(shortest(), "spec.monitors.wandb", {"project": "p", "secretName": "mine"})
    reference = {"secretKeyRef": {"name": "mine", "key": "token", "optional": True}}
    for role, spec in specs(document).items():
        assert env(spec).get("WANDB_API_KEY") == (reference if role == "orchestrator" else None)
    assert all("WANDB_API_KEY" not in env(spec) for spec in specs(shortest()).values())


def test_the_hub_token_is_prepares_alone():
    document = with_value(shortest(), "spec.model.tokenSecretName", "hub")
    having = {role for role, spec in specs(document).items() if '"hub"' in json.dumps(spec)}
    assert having == {"prepare"}


def test_where_an_attempt_begins():
    rendering = rendered(shortest())
    assert main(prepare_pod(rendering, 2)["spec"])["args"] == ["--policy", "Auto"]
    never = Resume(policy="Never", onExisting="Archive")
    arguments = ["--policy", "Never", "--on-existing", "Archive"]
    assert main(prepare_pod(rendering, 1, never)["spec"])["args"] == arguments
    assert "--step" in main(prepare_pod(rendering, 1, Resume(policy="FromStep", step=3))["spec"])["args"]


def test_prepare_takes_over_what_it_needs_of_the_orchestrators_template():
    spec = specs(manifest("two-pods"))["prepare"]
    assert [one["name"] for one in spec["containers"]] == ["prepare"]
    assert env(spec)["MAZE_SEEDS"] == "7"
    assert main(spec)["resources"]["requests"]["cpu"] == "250m"


def claims(document):
    return [body for body in common(rendered(document)) if body["kind"] == "PersistentVolumeClaim"]


def test_the_claim():
    [made] = claims(shortest())
    assert made["metadata"]["name"] == "shortest-volume"
    assert made["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "500Gi"}}}
    [asked] = claims(manifest("two-pods"))
    assert asked["spec"]["resources"]["requests"]["storage"] == "2Ti"
    assert asked["spec"]["storageClassName"] == "shared"
    existing = with_value(shortest(), "spec.storage.claimName", "mine")
    assert claims(existing) == []
    volume = next(one for one in specs(existing)["trainer"]["volumes"] if one["name"] == "volume")
    assert volume["persistentVolumeClaim"]["claimName"] == "mine"


def test_a_volume_of_one_node_takes_all_pods_there():
    assert all("affinity" not in spec for spec in specs(shortest()).values())
    document = with_value(shortest(), "spec.storage.accessMode", "ReadWriteOnce")
    found = {}
    for role, spec in specs(document).items():
        [term] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchLabels"] == {names.LABEL_RUN_UID: UID}
        found[role] = set(term["labelSelector"]["matchExpressions"][0]["values"])
    assert found == {
        "trainer": {"trainer", "inference"},
        "inference": {"trainer", "inference"},
        "prepare": {"trainer", "inference", "prepare"},
        "orchestrator": {"trainer", "inference"},
    }


def test_budgets_only_where_the_installation_asks_for_them():
    assert not [body for body in common(rendered(shortest())) if body["kind"] == "PodDisruptionBudget"]
    settings = SETTINGS.model_copy(update={"disruption_budgets": True})
    found = {
        body["metadata"]["name"]: body["spec"]
        for body in common(rendered(manifest("two-pods"), settings=settings))
        if body["kind"] == "PodDisruptionBudget"
    }
    assert {name: spec["minAvailable"] for name, spec in found.items()} == {
        "two-pods-trainer": 2,
        "two-pods-orchestrator": 1,
    }
    assert all(spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for spec in found.values())


def test_images():
    found = {role: main(spec)["image"] for role, spec in specs(shortest()).items()}
    assert found == {
        "trainer": "echorl/trainer:0.1.0",
        "inference": "echorl/inference:0.1.0",
        "orchestrator": "echorl/orchestrator:0.1.0",
        "prepare": "echorl/orchestrator:0.1.0",
    }
    assert main(specs(manifest("quickstart"))["inference"])["image"] == "echorl/inference-cpu:0.1.0"
    assert main(specs(full())["prepare"])["image"] == "example.org/orchestrator:1"


def test_pull_secrets_of_run_and_installation():
    settings = SETTINGS.model_copy(update={"image_pull_secrets": ("site", "registry")})
    twice = full()
    twice["spec"]["imagePullSecrets"] *= 2
    for document in (full(), twice):
        for spec in specs(document, settings=settings).values():
            assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "site"}]


@pytest.mark.parametrize("limit", ["1Gi", "3Gi"])
def test_a_memory_limit_that_shared_memory_fills_is_refused(limit):
    document = overlaid(shortest(), "inference", {"resources": {"limits": {"memory": limit}}})
    with pytest.raises(ValueError, match=r"spec\.inference\.template.*more than the 3Gi that memory-backed volumes"):
        rendered(document)


def test_a_memory_limit_above_shared_memory_is_taken():
    document = overlaid(shortest(), "inference", {"resources": {"limits": {"memory": "3073Mi"}}})
    assert main(specs(document)["inference"])["resources"]["limits"]["memory"] == "3073Mi"


def test_gpus_are_counted_in_one_place():
    document = overlaid(shortest(), "trainer", {"resources": {"limits": {"nvidia.com/gpu": 4}}})
    with pytest.raises(ValueError, match=r"spec\.trainer\.gpusPerReplica says how many"):
        rendered(document)


@pytest.mark.parametrize("wrong", [{"resources": "much"}, {"resources": {"limits": {"memory": "much"}}}])
def test_wrong_resources_are_named(wrong):
    with pytest.raises(ValueError, match=r"spec\.trainer\.template.*found .?'?much"):
        rendered(overlaid(shortest(), "trainer", wrong))


def test_the_teachers_key_is_the_orchestrators_alone():
    teacher = {"url": "http://teacher.models:8000/v1", "model": "big", "secretName": "teacher-key"}
    document = with_value(shortest(), "spec.algorithm", {"mode": "opd", "teacher": teacher})
    having = {role for role, spec in specs(document).items() if '"teacher-key"' in json.dumps(spec)}
    assert having == {"orchestrator"}
    reference = {"secretKeyRef": {"name": "teacher-key", "key": "token"}}
    assert env(specs(document)["orchestrator"])["ECHORL_TEACHER_KEY"] == reference
