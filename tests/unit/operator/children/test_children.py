"""What holds for the children of every run."""

import json
import re

import pytest

from echorl_core.config import InferenceConfig, OrchestratorConfig, PrepareConfig, TrainerConfig
from echorl_operator import names
from echorl_operator.children import (
    common,
    inference_deployment,
    orchestrator_config,
    orchestrator_pod,
    prepare_pod,
    spec_of,
    token_secret,
    trainer_set,
)
from echorl_operator.children.rendering import config_text
from echorl_operator.children.target import digest
from echorl_testing.kube.pod_security import violations
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.operator.rendered import NAMESPACE, SETTINGS, TOKEN, UID, children, manifest, pod_specs, rendered
from echorl_testing.operator.role_pods import env, main, mounts, overlaid, specs

DOCUMENTS = {
    "shortest": shortest,
    "full": full,
    "two-pods": lambda: manifest("two-pods"),
    "games": lambda: manifest("games"),
}
ALL = pytest.mark.parametrize("document", [make() for make in DOCUMENTS.values()], ids=list(DOCUMENTS))


@ALL
def test_every_child_knows_its_run(document):
    run = document["metadata"]["name"]
    for body in children(rendered(document)):
        metadata = body["metadata"]
        assert metadata["namespace"] == NAMESPACE
        assert metadata["name"].startswith(f"{run}-")
        assert metadata["labels"][names.LABEL_RUN_UID] == UID
        assert metadata["labels"][names.LABEL_RUN] == run
        kept = body["kind"] == "PersistentVolumeClaim" and document["spec"].get("storage", {}).get("retain", True)
        owners = metadata.get("ownerReferences", [])
        assert [(one["uid"], one["controller"]) for one in owners] == ([] if kept else [(UID, True)])


@ALL
def test_names_are_unique_and_short_enough(document):
    document["metadata"]["name"] = "x" * 40
    if document["spec"]["environments"]["train"][0]["type"].startswith("openenv:"):
        document["spec"]["environments"]["train"][0]["name"] = "y" * 18
    found = [(body["kind"], body["metadata"]["name"]) for body in children(rendered(document), attempt=99999)]
    assert len(set(found)) == len(found)
    # Host names and labels; other names may be longer.
    assert all(len(name) <= 63 for kind, name in found if kind != "ConfigMap")


@ALL
def test_the_hash_is_of_the_object_without_it(document):
    for body in children(rendered(document)):
        annotations = body["metadata"]["annotations"]
        found = annotations.pop(names.ANNOTATION_HASH)
        if not annotations:
            del body["metadata"]["annotations"]
        if body["kind"] == "Secret":
            del body["data"]
        assert found == digest(body)


@ALL
def test_selectors_are_of_this_run_alone(document):
    for body in children(rendered(document)):
        spec = body.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is None:
            continue
        labels = selector.get("matchLabels", selector)
        assert labels[names.LABEL_RUN_UID] == UID
        if body["kind"] in {"StatefulSet", "Deployment"}:
            assert labels.items() <= spec["template"]["metadata"]["labels"].items()
            assert names.LABEL_ATTEMPT not in labels


@ALL
def test_the_same_run_renders_the_same(document):
    assert rendered(document) == rendered(document)
    assert json.dumps(children(rendered(document))) == json.dumps(children(rendered(document)))


@ALL
def test_pods_are_admitted_by_the_restricted_standard(document):
    for role, spec in specs(document).items():
        assert violations(spec) == [], role


def test_only_rdma_leaves_the_restricted_standard():
    context = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    found = {role: violations(spec) for role, spec in specs(overlaid(shortest(), "trainer", context)).items()}
    assert found == {"trainer": ["trainer: adds IPC_LOCK"], "inference": [], "orchestrator": [], "prepare": []}


@ALL
def test_pods_carry_no_kubernetes_token_and_a_read_only_root(document):
    for role, spec in specs(document).items():
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["serviceAccountName"] == f"{document['metadata']['name']}-{role}"
        assert main(spec)["securityContext"]["readOnlyRootFilesystem"] is True
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (10001, 10001)


@ALL
def test_every_folder_that_is_written_to_is_a_volume(document):
    for role, spec in specs(document).items():
        writable = [path for path, one in mounts(spec).items() if not one.get("readOnly")]
        folders = [env(spec)[name] for name in ("HOME", "TMPDIR")]
        if role != "environment":
            folders += [env(spec)[name] for name in ("XDG_CACHE_HOME", "HF_HOME", "VLLM_CACHE_ROOT")]
            folders += [env(spec)["TRITON_CACHE_DIR"], env(spec)["TORCHINDUCTOR_CACHE_DIR"]]
        if role == "inference":
            folders.append(main(spec)["command"][-1])
        assert all(any(f"{folder}/".startswith(f"{path}/") for path in writable) for folder in folders), role
        scratch = next(one for one in spec["volumes"] if one["name"] == "scratch")
        assert scratch["emptyDir"]["sizeLimit"]


@ALL
def test_only_prepare_is_online(document):
    # Servers of environments are images of others, and reach nothing.
    own = {role: spec for role, spec in specs(document).items() if role != "environment"}
    offline = {role: env(spec).get("HF_HUB_OFFLINE") for role, spec in own.items()}
    assert offline == {"trainer": "1", "inference": "1", "orchestrator": "1", "prepare": None}


def test_identity_reaches_every_role_and_the_attempt_only_those_bound_to_it():
    found = specs(shortest())
    for role, spec in found.items():
        assert env(spec)["ECHORL_RUN_UID"] == UID
        assert env(spec)["ECHORL_TERMINATION_LOG"] == main(spec)["terminationMessagePath"]
        assert ("ECHORL_ATTEMPT" in env(spec)) is (role != "inference")
        assert ("ECHORL_ADMIN_TOKEN" in env(spec)) is (role != "prepare")


def test_the_attempt_is_in_labels_alone():
    rendering = rendered(shortest())
    first, second = trainer_set(rendering, 1, 2), trainer_set(rendering, 2, 2)
    assert first["spec"]["template"]["metadata"]["labels"][names.LABEL_ATTEMPT] == "1"
    assert first["spec"]["selector"] == second["spec"]["selector"]
    assert first["spec"]["template"]["spec"] == second["spec"]["template"]["spec"]
    assert names.LABEL_ATTEMPT not in json.dumps(inference_deployment(rendering, 1))
    assert prepare_pod(rendering, 7)["metadata"]["name"] == "shortest-prepare-7"
    for attempt in (0, -1):
        with pytest.raises(ValueError, match="attempt"):
            orchestrator_pod(rendering, attempt)


def test_the_gang_waits_for_its_gate_and_no_container_of_it_starts_twice():
    body = trainer_set(rendered(manifest("two-pods")), 1, 2)
    spec = body["spec"]
    assert (spec["podManagementPolicy"], spec["updateStrategy"]["type"]) == ("Parallel", "OnDelete")
    pod = spec["template"]["spec"]
    assert pod["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
    assert (pod["restartPolicy"], pod["containers"][0]["restartPolicy"]) == ("Always", "Never")
    variables = {one["name"]: one for one in pod["containers"][0]["env"]}
    assert variables["ECHORL_PODS"]["value"] == "2"
    assert variables["ECHORL_RANKS_PER_POD"]["value"] == "8"
    assert variables["MASTER_ADDR"]["value"] == "two-pods-trainer-0.two-pods-trainer"
    assert spec["serviceName"] == "two-pods-trainer"
    assert (pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) == "8"


def test_pods_that_restart_in_place_together_know_where_they_agree():
    body = manifest("two-pods")
    assert "ECHORL_GANG_PORT" not in env(specs(body)["trainer"])
    body["spec"].setdefault("checkpoint", {})["memory"] = {"limit": "8Gi"}
    assert env(specs(body)["trainer"])["ECHORL_GANG_PORT"] == "29501"
    assert "ECHORL_GANG_MEMBERS" not in env(specs(body)["trainer"])
    body["spec"]["checkpoint"]["memory"]["mirror"] = True
    members = [f"two-pods-trainer-{index}.two-pods-trainer:29501" for index in range(2)]
    assert env(specs(body)["trainer"])["ECHORL_GANG_MEMBERS"] == ",".join(members)
    body["spec"]["checkpoint"]["memory"]["mirror"] = False
    body["spec"]["trainer"]["replicas"] = 1
    assert "ECHORL_GANG_PORT" not in env(specs(body)["trainer"])


def test_a_gang_on_the_cpu_has_one_rank_a_pod():
    spec = specs(manifest("quickstart"))["trainer"]
    assert env(spec)["ECHORL_RANKS_PER_POD"] == "1"
    assert env(spec)["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "nvidia.com/gpu" not in json.dumps(spec)


def test_engines_are_replaced_one_by_one():
    body = inference_deployment(rendered(shortest()), 3)
    assert body["spec"]["replicas"] == 3
    assert body["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    start = main(body["spec"]["template"]["spec"])["startupProbe"]
    assert body["spec"]["progressDeadlineSeconds"] > start["periodSeconds"] * start["failureThreshold"]


def test_services_name_pods_that_are_not_ready():
    found = {
        body["metadata"]["name"]: body["spec"] for body in common(rendered(shortest())) if body["kind"] == "Service"
    }
    assert set(found) == {"shortest-trainer", "shortest-inference", "shortest-orchestrator"}
    assert all(one["clusterIP"] == "None" and one["publishNotReadyAddresses"] for one in found.values())


def test_role_configs_can_be_read_by_their_roles():
    rendering = rendered(full())
    kinds = {
        "trainer.json": TrainerConfig,
        "inference.json": InferenceConfig,
        "orchestrator.json": OrchestratorConfig,
        "prepare.json": PrepareConfig,
    }
    for file, kind in kinds.items():
        kind.model_validate_json(config_text(rendering, file))
    assert orchestrator_config(rendering).engines.names == ["full-inference:8000"]
    assert spec_of(rendering).model_dump(mode="json", by_alias=True) == rendering.spec


def test_configs_are_where_commands_look_for_them():
    rendering = rendered(full())
    maps = {body["metadata"]["name"]: body for body in common(rendering) if body["kind"] == "ConfigMap"}
    assert all(body["immutable"] for body in maps.values())
    for role, spec in pod_specs(rendering):
        volume = next(one for one in spec["volumes"] if one["name"] == "config")
        command = main(spec)["command"]
        path = command[command.index("--config") + 1]
        assert path == f"/etc/echorl/{role}.json"
        assert list(maps[volume["configMap"]["name"]]["data"]) == [f"{role}.json"]


def test_a_change_for_one_role_replaces_no_other_roles_pods():
    """``maxSteps`` means nothing to engines."""
    before, after = (specs(document) for document in (shortest(), with_value(shortest(), "spec.maxSteps", 7)))
    changed = {role for role in before if before[role] != after[role]}
    assert changed == {"trainer", "orchestrator", "prepare"}
    scaled = specs(with_value(shortest(), "spec.inference.replicas", 9))
    assert scaled == before


def test_who_mounts_what():
    """The table of docs/operator/children.md."""

    def volume_of(document):
        return {
            role: {path: (one.get("subPath"), one.get("readOnly", False)) for path, one in mounts(spec).items()}
            for role, spec in specs(document).items()
        }

    def of_volume(found):
        own = {"/etc/echorl", "/home/echorl", "/tmp", "/var/run/echorl", "/dev/shm"}
        return {role: {path: how for path, how in paths.items() if path not in own} for role, paths in found.items()}

    model, run = (
        {"/models/Qwen/Qwen3-0.6B": ("runs/shortest/.model", True)},
        {"/volume/runs/shortest": ("runs/shortest", False)},
    )
    assert of_volume(volume_of(shortest())) == {
        "trainer": model | run,
        "orchestrator": model | run,
        "inference": model,
        "prepare": {"/volume": (None, False)},
    }
    policy, whole = {"/models/models/policy": ("models/policy", True)}, "/volume/runs/full"
    code = {"/code": ("code", True)}
    assert of_volume(volume_of(full())) == {
        "trainer": {**policy, whole: ("runs/full", False), **code},
        "orchestrator": {**policy, whole: ("runs/full", False), **code},
        "inference": {**policy, whole: ("runs/full", True)},
        "prepare": {"/volume": (None, False)},
    }


def test_the_token_is_in_its_secret_alone():
    rendering = rendered(shortest())
    secret = token_secret(rendering, TOKEN)
    assert secret["immutable"]
    assert secret["data"]
    others = [body for body in children(rendering) if body["kind"] != "Secret"]
    assert secret["data"]["token"] not in json.dumps(others)
    assert token_secret(rendering, "another")["metadata"] == secret["metadata"]


def test_sandboxes_in_pods_need_a_broker_and_orchestrators_know_where_it_is():
    document = with_value(shortest(), "spec.sandboxes", {"provider": "pod"})
    told = "spec.sandboxes.provider: this installation has no broker: sandboxes.enabled of charts/echorl is false"
    with pytest.raises(ValueError, match=re.escape(told)):
        rendered(document)
    settings = SETTINGS.model_copy(update={"broker_url": "http://echorl-broker.echorl-system.svc:8090"})
    config = orchestrator_config(rendered(document, settings=settings)).sandboxes
    assert config is not None
    url = f"http://echorl-broker.echorl-system.svc:8090/runs/{NAMESPACE}/shortest"
    assert (config.provider, config.broker_url) == ("pod", url)
    by_agent_sandbox = with_value(shortest(), "spec.sandboxes", {"provider": "agent-sandbox"})
    told = "this installation has no agent-sandbox: sandboxes.agentSandbox of charts/echorl is false; found"
    with pytest.raises(ValueError, match=re.escape(told)):
        rendered(by_agent_sandbox, settings=settings)
    using = settings.model_copy(update={"agent_sandbox": True})
    config = orchestrator_config(rendered(by_agent_sandbox, settings=using)).sandboxes
    assert config is not None
    assert (config.provider, config.broker_url) == ("pod", url), "orchestrators know no difference"
    by_process = with_value(shortest(), "spec.sandboxes", {"provider": "process"})
    config = orchestrator_config(rendered(by_process, settings=settings)).sandboxes
    assert config is not None
    assert (config.provider, config.broker_url) == ("process", None)
