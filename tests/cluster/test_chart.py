"""Both charts on a real API server: installed, upgraded, rolled back, uninstalled, tried out.

No node runs the operator's image here: its pods are played, and where it works it is a process with the rights of the
chart's own service account. Helm is built when it is first asked for.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_operator import names
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.helm import CHART, CHARTS, CRDS, Helm, HelmError, objects
from echorl_testing.manifests.documents import with_name

pytestmark = pytest.mark.timeout(600)

VALUES = CHARTS.parent / "tests" / "charts" / "values"
NAME = "echorl-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATIENCE_S = 180.0


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
    values["sandboxes"]["agentSandbox"] = False
    looked_after = [make_namespace(), make_namespace()]
    values |= {"watch": {"namespaces": looked_after}, "nodeSelector": {}, "affinity": {}}
    namespace = release(values, wait=True)
    for body in manifest(helm, namespace):
        assert api.get(path_of(body, namespace))
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    for component in ("operator", "broker"):
        nodes = [
            pod["spec"]["nodeName"]
            for pod in pods
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        assert len(nodes) == 3, component
        assert len(set(nodes)) == 2, f"{component}: spread"
    assert {one["metadata"]["namespace"] for one in manifest(helm, namespace) if one["kind"] == "Role"} == {
        namespace,
        *looked_after,
    }
    for policy in ("children", "sandboxes", "scale", "templates"):
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
