"""The CRD on a real API server: accepted without complaint, scaled, explained, printed, its status kept whole."""

import json
import subprocess

import pytest
import yaml

from echorl_manifest.models.status import MAX_TIMELINE, Control, RunStatus
from echorl_manifest.schema import keys
from echorl_testing.cluster.api import ApiError
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.run_objects import CRD_FILE, Runs, causes, install_crd
from echorl_testing.manifests.documents import full, shortest, with_value

STATUS = {
    "phase": "Running",
    "message": "step 138 of 300: waiting for a batch",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "RolesReady",
            "message": "all pods are ready",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
            "observedGeneration": 3,
        }
    ],
    "observedGeneration": 3,
    "attempt": 2,
    "revision": "full-2-3",
    "resumeStep": 125,
    "step": 137,
    "reward": "0.63",
    "policy": {"trained": 137, "served": {"min": 136, "max": 137}, "stalenessMax": 1},
    "checkpoint": {
        "step": 125,
        "committedAt": "2026-01-31T12:00:00Z",
        "sizeBytes": 5,
        "path": "checkpoints/step_000125",
    },
    "restarts": 1,
    "restartsByRole": {"trainer": 1, "inference": 2, "orchestrator": 0},
    "notices": 3,
    "lastNotice": "attempt 2: one-trainer-0 was given notice: EvictionByEvictionAPI",
    "roles": {
        "trainer": {"ready": 2, "desired": 2},
        "inference": {"ready": 3, "desired": 3},
        "orchestrator": {"ready": 1, "desired": 1},
    },
    "inference": {"replicas": 3, "selector": "echorl.dev/run-uid=x,echorl.dev/role=inference", "autoscale": "why"},
    "sandboxes": {
        "alive": 6,
        "starting": 1,
        "waiting": [{"reason": "QuotaExceeded", "count": 2, "message": "exceeded quota: few"}],
        "lost": {"evicted": 1},
    },
    "goodput": {"trainer/useful": 120, "inference/waiting": 77, "tokens/stale": 9, "usefulPercent": 61},
    "model": {"revision": "0123456789abcdef"},
    "startTime": "2026-01-31T10:00:00Z",
    "completionTime": "2026-01-31T13:00:00.123456Z",
    "control": {
        "renderedGeneration": 3,
        "activeSince": "2026-01-31T11:00:00Z",
        "failure": "NonFinite",
        "countedPod": "2f1b7c1e-0000-4000-8000-000000000000",
        "restartsInPlace": 1,
        "replacements": 1,
        "replacing": {"1": 1769853600},
        "replacedAt": 1769853600,
        "engineRestarts": {"one-inference-5d8-x": 2},
        "judgedEnds": {"one-inference-5d8-x": 3},
        "autoscale": {"wanted": 3, "min": 1, "max": 4, "replicas": 2, "off": 1},
        "gang": {"pods": 1, "replicas": 2, "since": 1769853600},
        "preparedAttempt": 2,
        "admittedAttempt": 2,
        "admittedPods": "0123456789abcdef",
        "notBefore": "2026-01-31T10:00:00Z",
        "stopAskedAt": "2026-01-31T10:00:00Z",
        "restartsUsed": {"trainer": 1, "inference": 0, "orchestrator": 0},
        "reachedStep": 137,
        "failedPreparations": 1,
        "steppedAttempt": 2,
        "noticedAttempt": 2,
        "lostCheckpoint": "checkpoint 140: its file is 12 bytes short",
    },
    "timeline": [{"phase": "Pending", "since": "2026-01-31T10:00:00Z", "attempt": 0, "reason": "Created"}],
}


@pytest.fixture(scope="module")
def crd(api):
    return install_crd(api)


@pytest.fixture
def runs(crd, api, namespace):
    return Runs(api, namespace)


@pytest.fixture
def kubectl(control_plane, namespace, tmp_path):
    """Runs kubectl as a user does; the result with its output. What it knows of kinds is of no other cluster."""
    program, config = str(Binaries().path("kubectl")), str(control_plane.connection.kubeconfig)

    def call(*arguments, given=None):
        command = [program, "--kubeconfig", config, "--cache-dir", str(tmp_path / "cache"), "-n", namespace, *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)

    return call


def test_accepted_as_structural(crd):
    conditions = {one["type"]: one for one in crd["status"]["conditions"]}
    assert conditions["Established"]["status"] == "True"
    assert conditions["NamesAccepted"]["status"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert "KubernetesAPIApprovalPolicyConformant" not in conditions


def test_applying_it_again_changes_nothing(crd, api):
    assert install_crd(api)["metadata"]["resourceVersion"] == crd["metadata"]["resourceVersion"]


def test_kubectl_can_apply_it_without_the_server_side_flag(crd, kubectl):
    result = kubectl("apply", "--dry-run=server", "-f", str(CRD_FILE))
    assert result.returncode == 0, result.stderr


def test_nothing_but_the_engines_count_is_filled_in(runs):
    assert runs.tried(shortest())["spec"] == {**shortest()["spec"], "inference": {"replicas": 1}}


def test_null_means_not_set(runs):
    document = shortest()
    for path in (
        "spec.seed",
        "spec.algorithm",
        "spec.trainer.parallel",
        "spec.code.path",
        "spec.environments.eval",
        "spec.resume.policy",
    ):
        document = with_value(document, path, None)
    assert runs.tried(document)
    assert runs.tried(with_value(document, "spec.inference", None))["spec"]["inference"] == {"replicas": 1}


def test_status_is_kept_whole_and_is_all_of_the_model(runs, api):
    runs.created(full())
    path = f"{runs.path}/full/status"
    assert api.patch(path, {"status": STATUS})["status"] == STATUS
    assert set(STATUS) == set(keys(RunStatus))
    assert set(STATUS["control"]) == set(keys(Control))
    assert (
        RunStatus.model_validate(STATUS, strict=False).model_dump(mode="json", by_alias=True, exclude_none=True)
        == STATUS
    )
    assert "status" not in runs.tried({**full(), "metadata": {"name": "other"}, "status": STATUS})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"phase": "Flying"}, "status.phase"),
        ({"message": "x" * 4097}, "status.message"),
        ({"attempt": -1}, "status.attempt"),
        ({"startTime": "yesterday"}, "status.startTime"),
        ({"timeline": STATUS["timeline"] * (MAX_TIMELINE + 1)}, "status.timeline"),
        ({"conditions": STATUS["conditions"] * 2}, "status.conditions[1]"),
    ],
)
def test_status_is_bounded(runs, api, changes, field):
    runs.created(shortest())
    with pytest.raises(ApiError) as caught:
        api.patch(f"{runs.path}/shortest/status", {"status": {**STATUS, **changes}})
    assert field in [cause.field for cause in causes(caught.value)]


def test_scale_subresource(runs, api, kubectl):
    runs.created(shortest())
    path = f"{runs.path}/shortest/scale"
    assert api.get(path)["spec"] == {"replicas": 1}
    api.patch(f"{runs.path}/shortest/status", {"status": {"inference": {"replicas": 1, "selector": "a=b"}}})
    assert api.get(path)["status"] == {"replicas": 1, "selector": "a=b"}
    result = kubectl("scale", "erl/shortest", "--replicas=3")
    assert result.returncode == 0, result.stderr
    assert api.get(f"{runs.path}/shortest")["spec"]["inference"] == {"replicas": 3}
    refused = kubectl("scale", "erl/shortest", "--replicas=0")
    assert refused.returncode != 0
    assert "spec.inference.replicas" in refused.stderr


def test_applying_again_leaves_an_autoscalers_count(runs, kubectl, api):
    manifest = yaml.safe_dump(shortest())
    for _ in range(2):
        assert kubectl("apply", "-f", "-", given=manifest).returncode == 0
        assert kubectl("scale", "erl/shortest", "--replicas=5").returncode == 0
    assert kubectl("apply", "-f", "-", given=manifest).returncode == 0
    assert api.get(f"{runs.path}/shortest/scale")["spec"] == {"replicas": 5}


def test_columns(runs, api, kubectl):
    runs.created(full())
    api.patch(f"{runs.path}/full/status", {"status": STATUS})
    header, row = kubectl("get", "erl").stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "REASON", "STEP", "REWARD", "POLICY", "CHECKPOINT", "RESTARTS", "AGE"]
    assert row.split()[:8] == ["full", "Running", "RolesReady", "137", "0.63", "137", "125", "1"]
    wide = kubectl("get", "erl", "-o", "wide").stdout
    assert "MESSAGE" in wide
    assert STATUS["message"] in wide
    assert "echorlrun.echorl.dev/full" in kubectl("get", "all").stdout


def test_explain_reads_well(crd, kubectl):
    said = {}

    def explained():
        said["trainer"] = kubectl("explain", "echorlrun.spec.trainer")
        return said["trainer"].returncode == 0

    wait_for("kubectl explain knows the schema", explained, seconds=120)
    text = " ".join(said["trainer"].stdout.split())
    assert "The ranks that update the weights. The gang of trainer ranks: replicas x max(1, gpusPerReplica)." in text
    assert "activationCheckpointing" in text
    field = " ".join(kubectl("explain", "erl.spec.trainer.optimizer.schedule").stdout.split())
    assert "ENUM: constant linear cosine" in field
    assert "Course of the learning rate after warm-up, until maxSteps. Default: constant." in field
    assert "A change restarts the gang." in field
    assert "``" not in kubectl("explain", "erl", "--recursive").stdout


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.algorithm.batchSize", 65, "spec.algorithm.batchSize: Invalid value: found 65; accepted: a multiple of"),
        ("spec.maxStep", 65, 'unknown field "spec.maxStep"'),
        ("spec.weightTransfer.mode", "htpp", "spec.weightTransfer.mode: Unsupported value"),
        ("spec.environments.train", [], "spec.environments.train: Required value: a run needs something to learn in"),
        ("spec.environments.train.0.name", "all", "spec.environments.train[0].name: "),
    ],
)
def test_what_a_user_reads(crd, kubectl, path, value, words):
    document = with_value({**full(), "metadata": {"name": "bad"}}, path, value)
    result = kubectl("apply", "--dry-run=server", "-f", "-", given=json.dumps(document))
    assert result.returncode == 1
    assert words in result.stderr, result.stderr
