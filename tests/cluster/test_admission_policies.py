"""The chart's admission policies on a real API server: who may touch a run's children, what templates may say."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_manifest import load
from echorl_operator import names
from echorl_operator.children import cluster_problems
from echorl_operator.children.overlay_rules import overlay_problems
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH, Api, ApiError, granted
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.processes import wait_for
from echorl_testing.manifests.documents import with_name
from echorl_testing.operator import pod_templates
from echorl_testing.operator.operator_process import operator_pod
from echorl_testing.operator.operator_world import World
from echorl_testing.operator.rendered import SETTINGS
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(600)

NAME = "echorl-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATIENCE_S = 180.0


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

        def create() -> Any:
            return as_alice.request("POST", runs, with_name("x"), query={"dryRun": "All"})

        wait_for("alice may create runs", lambda: granted(create), seconds=PATIENCE_S)
        return as_alice

    return bind


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
        with operator_pod(kubeconfig, namespace, tmp_path, yaml.safe_load(held)):
            world.create()
            await world.phase("Running", attempt=1, seconds=PATIENCE_S)
            await world.until("all kinds of children are there", lambda: kinds(api, namespace) == ALL, PATIENCE_S)
            await asyncio.to_thread(users_are_kept_out, user, api, namespace)
            # The run's own scale is open, and the operator carries it out.
            user.patch(f"{world.runs}/one/scale", {"spec": {"replicas": 3}})
            await world.until("a third engine", lambda: len(world.pods("inference")) == 3, PATIENCE_S)
            await world.until("nothing is missing", lambda: world.status()["attempt"] == 1, PATIENCE_S)
        user.delete(f"{world.runs}/one")
        await world.until("the garbage collector was let through", lambda: not children(api, namespace), PATIENCE_S)
        # The claim is the user's.
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        assert granted(lambda: user.delete(f"{claims}/one-volume"))


PLURALS = {
    "api/v1": ["configmaps", "secrets", "serviceaccounts", "services"],
    "apis/apps/v1": ["controllerrevisions", "deployments", "replicasets", "statefulsets"],
    "apis/networking.k8s.io/v1": ["networkpolicies"],
    "apis/policy/v1": ["poddisruptionbudgets"],
}


ALL = {plural for plurals in PLURALS.values() for plural in plurals}


def kinds(api: Api, namespace: str) -> set[str]:
    """Plurals of the kinds that runs have children of; some are made by controllers."""
    return {path.split("/")[-2] for path in children(api, namespace)}


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

    wait_for("the binding holds", lambda: granted(by_emergency), seconds=PATIENCE_S)


def test_who_may_be_on_a_nodes_network_is_said_by_the_installation(
    release: Callable[..., str], api: Api, alice: Callable[[str], Api]
) -> None:
    def outcome(user: Api, namespace: str, role: str, network: Mapping[str, Any]) -> str:
        runs = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"
        try:
            user.request("POST", runs, with_name("x", **{role: {"network": network}}), query={"dryRun": "All"})
        except ApiError as error:
            return str(error)
        return ""

    namespace = release()
    user = alice(namespace)
    wait_for("the policy holds", lambda: bool(outcome(user, namespace, "trainer", {"host": True})), seconds=PATIENCE_S)
    for role in ("trainer", "inference"):
        run = load(with_name("x", **{role: {"network": {"host": True}}}))
        (problem,) = cluster_problems(run, SETTINGS)
        assert f"denied request: {problem}" in outcome(user, namespace, role, {"host": True})
        for network in ({"host": False}, {"interface": "eth0", "rdma": {"resource": "rdma/hca"}}, {}):
            assert outcome(user, namespace, role, network) == ""
    # The policy of one installation, or the other's change of it, is in force a moment later.
    allowing = release({"settings": {"hostNetworkCidrs": ["10.0.0.0/16"]}})
    user = alice(allowing)

    def refused(network: Mapping[str, Any]) -> str:
        return outcome(user, allowing, "trainer", network)

    template = {"trainer": {"template": {"spec": {"hostNetwork": True}}}}

    def holds() -> bool:
        runs = f"/apis/echorl.dev/v1alpha1/namespaces/{allowing}/echorlruns"
        return not granted(lambda: user.request("POST", runs, with_name("x", **template), query={"dryRun": "All"}))

    wait_for("its policy holds", holds, seconds=PATIENCE_S)
    assert refused({"host": True}) == ""


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
    for role in ("trainer", "inference", "orchestrator"):
        for name, template in (pod_templates.REFUSED | pod_templates.REFUSED_AT_LENGTH).items():
            expected = "; ".join(map(str, overlay_problems(template, f"spec.{role}.template")))
            assert expected, name
            assert f"denied request: {expected}" in outcome(role, template), name
        told = outcome(role, {"spec": {"containers": [{"name": str(one), "restartPolicy": "x"} for one in range(9)]}})
        assert f"spec.{role}.template.spec.containers[7].restartPolicy: " in told
        assert "; and 1 more" in told
    for name, template in pod_templates.ACCEPTED.items():
        assert not overlay_problems(template, "spec.trainer.template"), name
        assert outcome("trainer", template) == "", name
    # Admins are no exception, and an edit is none either.
    user.create(runs, with_name("x"))
    with pytest.raises(
        ApiError, match=r"spec\.trainer\.template\.spec\.hostPID: pods of a run .*; found true; accepted: no"
    ):
        api.patch(f"{runs}/x", {"spec": {"trainer": {"template": {"spec": {"hostPID": True}}}}})
