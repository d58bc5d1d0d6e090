"""Both charts on a real API server: installed, upgraded, rolled back, uninstalled; what their policies let through.

No node runs the operator's image here: its pods are played, and where it works it is a process with the rights of the
chart's own service account. Helm is built when it is first asked for.
"""

import asyncio
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_operator import names
from echorl_operator.build.overlay_rules import overlay_problems
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH, Api, ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.errors import Unavailable
from echorl_testing.cluster.processes import wait_for
from echorl_testing.helm import CHART, CHARTS, CRDS, Helm, HelmError, objects
from echorl_testing.manifests import shortest
from echorl_testing.operator_process import operator_process
from echorl_testing.operator_world import World
from echorl_testing.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(600)

VALUES = CHARTS.parent / "tests" / "charts" / "values"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
NAME = "echorl-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def helm(api: Api, connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """Helm on the cluster, where charts/echorl-crds is installed."""
    try:
        made = Helm(tmp_path_factory.mktemp("helm"), connection.kubeconfig)
    except Unavailable as error:
        pytest.skip(str(error))
    # Other tests may have applied the CRD already.
    made("install", "echorl-crds", CRDS, "--namespace", "default", "--take-ownership", "--wait")
    wait_for(
        "runs are served", lambda: may(lambda: api.get("/apis/echorl.dev/v1alpha1/echorlruns")), seconds=PATIENCE_S
    )
    yield made
    made("uninstall", "echorl-crds", "--namespace", "default")


@pytest.fixture
def release(helm: Helm, make_namespace: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """Installs charts/echorl as ``echorl`` in a namespace of its own, which it returns."""
    made: list[str] = []

    def install(values: Mapping[str, Any] | None = None, *, chart: Path = CHART, wait: bool = False) -> str:
        namespace = make_namespace(RESTRICTED)
        made.append(namespace)
        more = ["--wait", "--timeout", "150s"] if wait else []
        helm("install", "echorl", chart, "--namespace", namespace, *more, values=values or {})
        return namespace

    yield install
    for namespace in made:
        helm("uninstall", "echorl", "--namespace", namespace, "--ignore-not-found")


def path_of(body: Mapping[str, Any], namespace: str) -> str:
    """Where an object of the chart is."""
    kind, version = body["kind"], body["apiVersion"]
    plural = f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"
    where = f"namespaces/{body['metadata'].get('namespace', namespace)}/"
    if kind.startswith(("Cluster", "ValidatingAdmission")):
        where = ""
    return f"/{'apis' if '/' in version else 'api'}/{version}/{where}{plural}/{body['metadata']['name']}"


def manifest(helm: Helm, namespace: str) -> list[dict[str, Any]]:
    return objects(helm("get", "manifest", "echorl", "--namespace", namespace))


def test_every_object_is_accepted_and_the_operators_pods_are_admitted(
    helm: Helm,
    release: Callable[..., str],
    api: Api,
    make_namespace: Callable[..., str],
    fake_nodes: Callable[..., Any],
) -> None:
    fake_nodes(cpu=2)
    values = yaml.safe_load((VALUES / "everything.yaml").read_text())
    for monitor in ("serviceMonitor", "podMonitor", "prometheusRule"):
        values["monitoring"][monitor]["enabled"] = False  # their kinds are not there
    looked_after = [make_namespace(), make_namespace()]
    values |= {"watch": {"namespaces": looked_after}, "nodeSelector": {}, "affinity": {}}
    namespace = release(values, wait=True)
    for body in manifest(helm, namespace):
        assert api.get(path_of(body, namespace))
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert len(pods) == 3
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "spread"
    assert {one["metadata"]["namespace"] for one in manifest(helm, namespace) if one["kind"] == "Role"} == {
        namespace,
        *looked_after,
    }
    for policy in ("children", "scale", "templates"):
        wait_for(
            "policies are checked", lambda policy=policy: checked(api, f"{policy}.{namespace}"), seconds=PATIENCE_S
        )


def checked(api: Api, policy: str) -> bool:
    """Whether the API server has held a policy's expressions against the kinds that it is about, and found no fault."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{policy}.echorl.dev"
    found = api.get(path)
    status = found.get("status", {})
    assert not status.get("typeChecking", {}).get("expressionWarnings"), status
    return bool(status.get("observedGeneration") == found["metadata"]["generation"])


def previous_chart(folder: Path) -> Path:
    """The chart as an earlier version may have been: another number, image and operator, a policy fewer."""
    chart = folder / "echorl"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9", "appVersion": "0.0.9"}))
    (chart / "templates" / "admission-scale.yaml").unlink()
    return chart


def test_upgrade_rollback_and_uninstall_keep_key_runs_and_claims(
    helm: Helm, release: Callable[..., str], api: Api, tmp_path: Path
) -> None:
    namespace = release(chart=previous_chart(tmp_path))
    own, secret = f"/api/v1/namespaces/{namespace}", f"{NAME}-master-key"
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}"
    scale_policy = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/scale.{namespace}.echorl.dev"

    def image() -> str:
        (container,) = api.get(deployment)["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def key() -> str:
        return str(api.get(f"{own}/secrets/{secret}")["data"]["master-key"])

    first, uid = key(), api.get(deployment)["metadata"]["uid"]
    assert image() == "echorl/operator:0.0.9"
    runs = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"
    api.create(runs, with_name("kept"))
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    labels = {names.LABEL_RUN: "kept", names.LABEL_RUN_UID: "1", names.LABEL_MANAGED_BY: names.MANAGED_BY}
    api.create(f"{own}/persistentvolumeclaims", {"metadata": {"name": "kept-volume", "labels": labels}, "spec": claim})

    helm("upgrade", "echorl", CHART, "--namespace", namespace, values={"replicas": 3})
    assert (image(), key(), api.get(deployment)["metadata"]["uid"]) == ("echorl/operator:0.1.0", first, uid)
    assert api.get(deployment)["spec"]["replicas"] == 3
    assert api.find(scale_policy)

    helm("rollback", "echorl", "1", "--namespace", namespace)
    assert (image(), key(), api.get(deployment)["spec"]["replicas"]) == ("echorl/operator:0.0.9", first, 2)
    assert api.find(scale_policy) is None

    everything = manifest(helm, namespace)
    helm("uninstall", "echorl", "--namespace", namespace, "--wait")
    left = {body["kind"] for body in everything if api.find(path_of(body, namespace))}
    assert left == {"Secret"}
    assert api.find(f"{runs}/kept")
    assert api.find(f"{own}/persistentvolumeclaims/kept-volume")

    # Under another name the key is still the runs' key.
    helm("install", "again", CHART, "--namespace", namespace)
    assert key() == first
    helm("uninstall", "again", "--namespace", namespace, "--wait")
    assert key() == first


def test_the_crd_outlives_its_release(helm: Helm, api: Api, namespace: str) -> None:
    runs = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"
    api.create(runs, with_name("kept"))
    helm("uninstall", "echorl-crds", "--namespace", "default", "--wait")
    try:
        assert api.find(f"{runs}/kept")
        assert api.find(f"{RBAC}/clusterroles/echorlruns-edit") is None
    finally:
        helm("install", "echorl-crds", CRDS, "--namespace", "default")
    assert api.find(f"{runs}/kept")


def with_name(name: str, **spec: Any) -> dict[str, Any]:
    document = shortest()
    document["metadata"] = {"name": name}
    document["spec"] |= spec
    return document


def test_installations_that_would_meet_are_refused(
    helm: Helm, release: Callable[..., str], make_namespace: Callable[..., str]
) -> None:
    def refused(message: str, namespace: str, **watch: Any) -> None:
        with pytest.raises(HelmError, match=message):
            helm("install", "second", CHART, "--namespace", namespace, values={"watch": watch})

    elsewhere, third = make_namespace(), make_namespace()
    first = release({"watch": {"namespaces": [elsewhere]}})
    refused(f"namespace {first} has an operator already, of release echorl", first)
    refused(f"namespace {elsewhere} is looked after already, by release echorl in namespace {first}", elsewhere)
    refused(f"namespace {elsewhere} is looked after already", third, namespaces=[third, elsewhere])
    refused(f"namespace {elsewhere} is looked after already, .* cannot be beside it", third, clusterWide=True)
    refused("found nowhere, which does not exist", third, namespaces=[third, "nowhere"])
    # What lets them see each other ends with them; two that do not meet live side by side.
    helm("install", "second", CHART, "--namespace", third)
    helm("uninstall", "second", "--namespace", third)
    helm("uninstall", "echorl", "--namespace", first, "--wait")
    helm("install", "echorl", CHART, "--namespace", first, values={"watch": {"clusterWide": True}})
    refused(f"an operator that looks after all namespaces, of release echorl in namespace {first}", third)
    refused(
        f"an operator that looks after all namespaces, of release echorl in namespace {first}", third, clusterWide=True
    )
    # A release may become the other kind itself.
    helm("upgrade", "echorl", CHART, "--namespace", first, values={"watch": {"namespaces": [elsewhere]}})


def test_an_unknown_value_is_refused_before_anything_is_made(helm: Helm, api: Api, namespace: str) -> None:
    with pytest.raises(HelmError, match="replica"):
        helm("install", "echorl", CHART, "--namespace", namespace, values={"replica": 2})
    assert not api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]


@pytest.fixture
def alice(api: Api, connection: Connection) -> Callable[[str], Api]:
    """Makes alice an admin of a namespace: the cluster's own role, with what charts/echorl-crds adds to it."""

    def bind(namespace: str) -> Api:
        body = {
            "metadata": {"name": "alice"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
        }
        api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", body)
        as_alice = Api(connection, token=connection.user_tokens["alice"])
        runs = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"
        wait_for("alice may look at runs", lambda: may(lambda: as_alice.get(runs)), seconds=PATIENCE_S)
        return as_alice

    return bind


def may(request: Callable[[], Any]) -> bool:
    """Whether a request is carried out; of a kind that is new, not at once."""
    try:
        request()
    except ApiError as error:
        if error.code not in {403, 404, 429, 503}:
            raise
        return False
    return True


async def test_children_are_the_operators_alone(
    release: Callable[..., str],
    api: Api,
    control_plane: Cluster,
    connection: Connection,
    alice: Callable[[str], Api],
    tmp_path: Path,
) -> None:
    namespace = release({"settings": {"disruptionBudgets": True}})
    user = alice(namespace)
    token = control_plane.service_account_token(namespace, NAME)
    kubeconfig = connection.write_kubeconfig(tmp_path / "kubeconfig", token=token)
    held = api.get(f"/api/v1/namespaces/{namespace}/configmaps/{NAME}-settings")["data"]["settings.yaml"]
    async with scripted(api, namespace) as cluster:
        world = World(user, namespace, cluster, None)
        # The operator and all controllers do their work in spite of the policies.
        with operator_process(kubeconfig, namespace, tmp_path, yaml.safe_load(held)):
            world.create()
            await world.phase("Running", attempt=1, seconds=PATIENCE_S)
            await asyncio.to_thread(users_are_kept_out, user, api, namespace)
            # The run's own scale is open, and the operator carries it out.
            user.patch(f"{world.runs}/one/scale", {"spec": {"replicas": 3}})
            await world.until("a third engine", lambda: len(world.pods("inference")) == 3, PATIENCE_S)
            await world.until("nothing is missing", lambda: world.status()["attempt"] == 1, PATIENCE_S)
        user.delete(f"{world.runs}/one")
        await world.until("the garbage collector was let through", lambda: not children(api, namespace), PATIENCE_S)
        # The claim is the user's.
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        assert may(lambda: user.delete(f"{claims}/one-volume"))


PLURALS = {
    "api/v1": ["configmaps", "secrets", "serviceaccounts", "services"],
    "apis/apps/v1": ["controllerrevisions", "deployments", "replicasets", "statefulsets"],
    "apis/networking.k8s.io/v1": ["networkpolicies"],
    "apis/policy/v1": ["poddisruptionbudgets"],
}


def children(api: Api, namespace: str) -> list[str]:
    """Paths of all children of runs, claims and pods apart."""
    return [
        f"/{group}/namespaces/{namespace}/{plural}/{one['metadata']['name']}"
        for group, plurals in PLURALS.items()
        for plural in plurals
        for one in api.get(f"/{group}/namespaces/{namespace}/{plural}", labelSelector=names.LABEL_RUN_UID)["items"]
    ]


def users_are_kept_out(user: Api, admin: Api, namespace: str) -> None:
    found = children(admin, namespace)
    assert {path.split("/")[-2] for path in found} == {one for plurals in PLURALS.values() for one in plurals}
    label = {"metadata": {"labels": {names.LABEL_RUN_UID: None, names.LABEL_RUN: None}}}
    for path in found:
        plural, name = path.split("/")[-2:]
        message = f"{plural} {name} belongs to EchoRLRun one, and the operator alone changes it.*by alice"
        for attempt in (
            lambda path=path: user.patch(path, {"metadata": {"annotations": {"note": "mine"}}}),
            lambda path=path: user.patch(path, label),
            lambda path=path: user.request("DELETE", path, {}),
        ):
            # An admin of a namespace has no right to write a few of these kinds anyway.
            with pytest.raises(ApiError, match=f"{message}|alice.*cannot") as caught:
                attempt()
            assert caught.value.code == 403
    for path in (one for one in found if one.split("/")[-2] in {"deployments", "replicasets", "statefulsets"}):
        with pytest.raises(ApiError, match="the operator alone scales it: scale the run instead"):
            user.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    strangers_and_emergencies(user, admin, namespace)


def strangers_and_emergencies(user: Api, admin: Api, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {names.LABEL_RUN: "one", names.LABEL_RUN_UID: "1"}
    with pytest.raises(ApiError, match="belongs to EchoRLRun one"):
        user.create(maps, {"metadata": {"name": "spoof", "labels": labels}})
    user.create(maps, {"metadata": {"name": "mine"}})
    with pytest.raises(ApiError, match="belongs to EchoRLRun one"):
        user.patch(f"{maps}/mine", {"metadata": {"labels": labels}})
    agents = {"metadata": {"name": "agents", "labels": {**labels, names.LABEL_ROLE: "agent"}}}
    user.create(maps, agents)
    user.delete(f"{maps}/agents")
    # Whoever may do everything is held back too, unless it is an emergency.
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/one-inference"
    note: dict[str, Any] = {"metadata": {"annotations": {"note": "x"}}}
    with pytest.raises(ApiError, match="belongs to EchoRLRun one"):
        admin.patch(deployment, note, content_type=STRATEGIC_MERGE_PATCH)
    emergency = {"Impersonate-User": "root", "Impersonate-Group": "echorl:break-glass"}
    body = {
        "metadata": {"name": "emergency"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "echorl:break-glass"}],
    }
    admin.create(f"{RBAC}/namespaces/{namespace}/rolebindings", body)

    def by_emergency() -> Any:
        return admin.request("PATCH", deployment, note, content_type="application/merge-patch+json", headers=emergency)

    wait_for("the binding holds", lambda: may(by_emergency), seconds=PATIENCE_S)


CONTAINER = {"name": "trainer"}
REFUSED_TEMPLATES: dict[str, dict[str, Any]] = {
    "service account": {"spec": {"serviceAccountName": "default"}},
    "token": {"spec": {"automountServiceAccountToken": True}},
    "host network": {"spec": {"hostNetwork": True}},
    "host PID": {"spec": {"hostPID": True}},
    "host IPC": {"spec": {"hostIPC": True}},
    "restart policy": {"spec": {"restartPolicy": "Always"}},
    "gates": {"spec": {"schedulingGates": []}},
    "hostname": {"spec": {"hostname": "x"}},
    "subdomain": {"spec": {"subdomain": "x"}},
    "node": {"spec": {"nodeName": "x"}},
    "hostPath": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
    "nfs": {"spec": {"volumes": [{"name": "x", "nfs": {"server": "x", "path": "/"}}]}},
    "projected token": {
        "spec": {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}]}
    },
    "privileged": {"spec": {"containers": [{**CONTAINER, "securityContext": {"privileged": True}}]}},
    "privileged init": {"spec": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}},
    "escalation": {"spec": {"containers": [{**CONTAINER, "securityContext": {"allowPrivilegeEscalation": True}}]}},
    "root": {"spec": {"securityContext": {"runAsUser": 0}}},
    "no user": {"spec": {"containers": [{**CONTAINER, "securityContext": {"runAsNonRoot": False}}]}},
    "seccomp": {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
    "capability": {
        "spec": {"containers": [{**CONTAINER, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}
    },
    "host port": {"spec": {"containers": [{**CONTAINER, "ports": [{"containerPort": 80, "hostPort": 80}]}]}},
    "container restart": {"spec": {"containers": [{**CONTAINER, "restartPolicy": "Always"}]}},
    "our label": {"metadata": {"labels": {names.LABEL_ROLE: "agent"}}},
    "our annotation": {"metadata": {"annotations": {names.ANNOTATION_HASH: "x"}}},
}
ACCEPTED_TEMPLATES: dict[str, dict[str, Any]] = {
    "usual": {
        "metadata": {"labels": {"team": "ml"}, "annotations": {"example.org/x": "y"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [
                {
                    **CONTAINER,
                    "env": [{"name": "X", "value": "1"}],
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "ports": [{"containerPort": 9000}],
                },
                {"name": "sidecar", "image": "x"},
            ],
        },
    },
    "nothing": {},
    "nulls": {"metadata": None, "spec": {"hostNetwork": None, "volumes": None, "containers": None}},
}


def test_templates_stay_harmless_and_the_operator_thinks_the_same(
    release: Callable[..., str], api: Api, alice: Callable[[str], Api]
) -> None:
    namespace = release()
    user, runs = alice(namespace), f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"

    def outcome(role: str, template: Mapping[str, Any]) -> str:
        try:
            user.request("POST", runs, with_name("x", **{role: {"template": template}}), query={"dryRun": "All"})
        except ApiError as error:
            if "ValidatingAdmissionPolicy" not in str(error):
                raise
            return str(error)
        return ""

    # Policies are in force a moment after they are there.
    wait_for("the policy holds", lambda: bool(outcome("trainer", {"spec": {"hostPID": True}})), seconds=PATIENCE_S)
    for name, template in REFUSED_TEMPLATES.items():
        assert overlay_problems(template, "spec.trainer.template") or name == "gates", name
        assert outcome("trainer", template), name
    for role in ("inference", "orchestrator"):
        assert "may not set hostNetwork, hostPID" in outcome(role, {"spec": {"hostPID": True, "hostNetwork": True}})
        assert "must be one of configMap" in outcome(role, REFUSED_TEMPLATES["hostPath"])
    for name, template in ACCEPTED_TEMPLATES.items():
        assert not overlay_problems(template, "spec.trainer.template"), name
        assert outcome("trainer", template) == "", name
    # Admins are no exception, and an edit is none either.
    user.create(runs, with_name("x"))
    with pytest.raises(ApiError, match="may not set hostPID"):
        api.patch(f"{runs}/x", {"spec": {"trainer": {"template": {"spec": {"hostPID": True}}}}})


def test_helm_test_runs_a_run_to_success(
    helm: Helm, release: Callable[..., str], api: Api, control_plane: Cluster, connection: Connection, tmp_path: Path
) -> None:
    """The test's pod is played by a process with its account, and the operator by the test."""
    namespace = release({"test": {"timeoutSeconds": 170}})
    pod = f"/api/v1/namespaces/{namespace}/pods/echorl-test"
    run = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns/echorl-test"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        testing = pool.submit(helm, "test", "echorl", "--namespace", namespace, "--timeout", "170s")
        wait_for("the test's pod", lambda: testing.done() or api.find(pod) is not None, seconds=PATIENCE_S)
        token = control_plane.service_account_token(namespace, "echorl-test")
        command = api.get(pod)["spec"]["containers"][0]["command"]
        playing = pool.submit(play, command, api, namespace, token, connection, tmp_path)
        wait_for("the run", lambda: playing.done() or api.find(run) is not None, seconds=PATIENCE_S)
        api.patch(f"{run}/status", {"status": {"phase": "Running", "step": 2, "message": "training"}})
        api.patch(f"{run}/status", {"status": {"phase": "Succeeded", "step": 3, "message": "done"}})
        done = playing.result(PATIENCE_S)
        api.patch(f"{pod}/status", {"status": {"phase": "Succeeded" if done.returncode == 0 else "Failed"}})
        assert "Phase:          Succeeded" in testing.result(PATIENCE_S)
    assert "Succeeded  step 3: done" in done.stdout
    assert api.find(run) is None


def play(
    command: list[str], api: Api, namespace: str, token: str, connection: Connection, folder: Path
) -> "subprocess.CompletedProcess[str]":
    """The test pod's process, on this machine."""
    held = api.get(f"/api/v1/namespaces/{namespace}/configmaps/echorl-test")["data"]
    for name, text in held.items():
        (folder / name).write_text(text)
    (folder / "token").write_text(token)
    shutil.copy(connection.ca_file, folder / "ca.crt")
    assert json.loads(held["run.json"])["spec"]["maxSteps"] == 3
    there = [one.replace("/test/", f"{folder}/") for one in command[1:]]
    return subprocess.run(
        [sys.executable, *there],
        env={**os.environ, "ACCOUNT_FOLDER": str(folder), "API_SERVER": connection.server},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
