"""The operator with exactly the rights that it is given, as a process of its own: enough for all it does, and no more.

The test cluster has the admission plugin OwnerReferencesPermissionEnforcement, as some distributions do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.fault_proxy import FaultProxy, Record, Upstream
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator import operator_rights
from echorl_testing.operator.operator_process import operator_pod
from echorl_testing.operator.operator_world import SPEC, World
from echorl_testing.operator.scripted_cluster import prepared, scripted
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 120.0
NOT_USED = {
    ("echorl.dev", "echorlruns/finalizers", "update"),
    ("", "persistentvolumeclaims", "delete"),
    ("apps", "controllerrevisions", "patch"),
}
"""Granted all the same: an admission plugin asks for the second, a lost label for the third; docs/operator/rbac.md."""


class Stage:
    """A service account, a proxy that sees all its requests, and processes of the operator that act as it."""

    def __init__(self, proxy: FaultProxy, kubeconfig: Path, namespace: str) -> None:
        self.proxy, self.kubeconfig, self.namespace = proxy, kubeconfig, namespace

    @contextmanager
    def operating(self, *namespaces: str, **settings: Any) -> Iterator[None]:
        arguments = ["--lease-namespace", self.namespace]
        for namespace in namespaces:
            arguments += ["--namespace", namespace]
        folder = self.kubeconfig.parent
        with operator_pod(self.kubeconfig, None, folder, {"operatorVersion": "0.1.0", **settings}, *arguments):
            yield

    def refused(self, *, namespaces: tuple[str, ...] = ()) -> list[str]:
        """Requests that were answered by 403: of the whole cluster, and of these namespaces."""
        return [
            f"{one.request.verb} {one.request.path}"
            for one in self.proxy.records
            if one.upstream_status == 403 and one.request.namespace in ("", self.namespace, *namespaces)
        ]


@pytest.fixture
async def stage(
    api: Api, connection: Connection, make_namespace: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Stage]:
    install_crd(api)
    async with FaultProxy(await Upstream.from_kubeconfig(connection.kubeconfig)) as proxy:
        yield Stage(proxy, tmp_path / "kubeconfig", make_namespace())


def act_as_the_account(stage: Stage, control_plane: Cluster) -> None:
    token = control_plane.service_account_token(stage.namespace, operator_rights.ACCOUNT)
    stage.proxy.write_kubeconfig(stage.kubeconfig, token)


async def test_the_rights_are_enough_and_the_least(
    stage: Stage, api: Api, control_plane: Cluster, make_namespace: Callable[..., str]
) -> None:
    ours, also_ours, foreign = make_namespace(), make_namespace(), make_namespace()
    operator_rights.grant(api, stage.namespace, [ours, also_ours])
    act_as_the_account(stage, control_plane)
    async with AsyncExitStack() as stack:
        world, other, stranger = [
            World(api, name, await stack.enter_async_context(scripted(api, name)), None)
            for name in (ours, also_ours, foreign)
        ]
        stranger.create()
        with stage.operating(ours, also_ours, disruptionBudgets=True):
            # Replicas, of which the first alone serves weights: by a policy that mode ``disk`` does without.
            world.create(trainer=SPEC["trainer"] | {"parallel": {"replicate": 2}})
            await asyncio.gather(lives(world), is_held_up(other))
        # Another process: it goes on with the events of the first, and the installation wants no budgets any more.
        with stage.operating(ours, also_ours):
            await ends(world)
        assert stranger.status() == {}
        assert not stranger.pods()
    assert stage.refused(namespaces=(ours, also_ours, foreign)) == []
    assert operator_rights.used(stage.proxy.records) == operator_rights.granted() - NOT_USED
    assert not [one for one in stage.proxy.records if whole_cluster(one)], "a namespaced operator asks for no more"


def whole_cluster(record: Record) -> bool:
    return bool(record.request.resource) and not record.request.namespace


async def lives(world: World) -> None:
    """Prepare, gang, scale, crash, restart, retention, suspend, resume, an edit that restarts."""
    await world.phase("Running", attempt=1, seconds=PATIENCE_S)
    world.api.patch(f"{world.runs}/one/scale", {"spec": {"replicas": 3}})
    await world.until("a third engine", lambda: len(world.pods("inference")) == 3, PATIENCE_S)
    await world.until("both ranks run", lambda: len(world.cluster.admitted) >= 2, PATIENCE_S)
    world.cluster.prepare = lambda attempt: prepared(attempt, resume_step=0)
    await world.cluster.end("one-trainer-1", 1, message_of_end("trainer", 1, "lost", attempt=1))
    await world.phase("Running", attempt=2, seconds=PATIENCE_S)
    world.edit({"storage": {"retain": False}})
    await world.until("the run owns its volume", lambda: owned(world), PATIENCE_S)
    world.edit({"storage": {"retain": True}})
    await world.until("the volume is free", lambda: not owned(world), PATIENCE_S)
    await rest(world)
    world.edit({"suspend": False, "weightTransfer": {"mode": "disk"}})
    await world.phase("Running", attempt=3, seconds=PATIENCE_S)
    policies = f"/apis/networking.k8s.io/v1/namespaces/{world.namespace}/networkpolicies"
    await world.until("a policy is out of use", lambda: world.api.find(f"{policies}/one-trainer-0") is None, PATIENCE_S)


async def is_held_up(world: World) -> None:
    """Only the gang's pods are too large for the namespace: the events of their StatefulSet tell, and nothing else."""
    limits = f"/api/v1/namespaces/{world.namespace}/limitranges"
    most = {"cpu": "900m"}
    world.api.create(
        limits,
        {"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "default": most, "max": most}]}},
    )
    container = {"name": "trainer", "resources": {"limits": {"cpu": "1"}}}
    world.create(trainer=SPEC["trainer"] | {"template": {"spec": {"containers": [container]}}})
    await world.until("why there are no pods is told", lambda: "900m" in world.status().get("message", ""), PATIENCE_S)
    world.api.delete(f"{limits}/small")
    await world.phase("Running", seconds=PATIENCE_S)


async def ends(world: World) -> None:
    """Suspend, resume, budgets that go, success, a rendering that is lost, time to live."""
    await rest(world)
    world.edit({"suspend": False})
    await world.phase("Running", attempt=4, seconds=PATIENCE_S)
    budgets = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets"
    await world.until("no budget is left", lambda: not world.api.get(budgets)["items"], PATIENCE_S)
    await world.cluster.succeed()
    await world.phase("Succeeded", seconds=PATIENCE_S)
    await world.until("pods are gone", lambda: not world.pods("trainer") and not world.pods("inference"), PATIENCE_S)
    apps = f"/apis/apps/v1/namespaces/{world.namespace}"
    await world.until(
        "old revisions are gone",
        lambda: len(own(world.api.get(f"{apps}/controllerrevisions")["items"])) == 2,
        PATIENCE_S,
    )
    for revision in own(world.api.get(f"{apps}/controllerrevisions")["items"]):
        world.api.delete(f"{apps}/controllerrevisions/{revision['metadata']['name']}")
    await world.until(
        "what nobody can render is gone",
        lambda: not world.api.get(f"{apps}/statefulsets")["items"] + world.api.get(f"{apps}/deployments")["items"],
        PATIENCE_S,
    )
    world.edit({"ttlSecondsAfterFinished": 1})
    await world.until("the run is gone", lambda: world.api.find(f"{world.runs}/one") is None, PATIENCE_S)


async def rest(world: World) -> None:
    played = world.cluster.orchestrators["one"]
    world.edit({"suspend": True})
    await world.until("the orchestrator is asked to stop", lambda: played.asked_to_stop, PATIENCE_S)
    await world.cluster.end("one-orchestrator", int(ExitCode.STOPPED))
    await world.phase("Suspended", seconds=PATIENCE_S)


def own(revisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of runs; a StatefulSet has revisions, too."""
    return [one for one in revisions if one["metadata"]["ownerReferences"][0]["kind"] == "EchoRLRun"]


def owned(world: World) -> bool:
    claim = world.api.get(f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/one-volume")
    return "EchoRLRun" in {one["kind"] for one in claim["metadata"].get("ownerReferences", [])}


async def test_rights_on_the_whole_cluster(stage: Stage, api: Api, control_plane: Cluster, namespace: str) -> None:
    operator_rights.grant(api, stage.namespace, None)
    try:
        act_as_the_account(stage, control_plane)
        async with scripted(api, namespace) as cluster:
            world = World(api, namespace, cluster, None)
            world.create()
            with stage.operating():
                await world.phase("Running", seconds=PATIENCE_S)
    finally:
        operator_rights.revoke(api, stage.namespace)
    assert stage.refused(namespaces=(namespace,)) == []
    # Events are asked for object by object, where a controller takes its time; so are pods that seem to be missing.
    lists = [one.request for one in stage.proxy.records if one.request.verb == "list"]
    by_name = [one for one in lists if one.query.get("fieldSelector", "").startswith("metadata.name=")]
    assert {one.resource for one in by_name} <= {"pods"}
    assert {one.namespace for one in lists if one.resource != "events" and one not in by_name} == {""}
    assert operator_rights.used(stage.proxy.records) <= operator_rights.granted()


async def test_a_missing_right_is_found(stage: Stage, api: Api, control_plane: Cluster, namespace: str) -> None:
    """The check itself: an operator that may not list pods does not go unnoticed."""
    operator_rights.grant(api, stage.namespace, [namespace])
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{operator_rights.ACCOUNT}"
    fewer = [rule for rule in operator_rights.rules()["runs"] if rule["resources"] != ["pods"]]
    api.patch(role, {"rules": fewer})
    act_as_the_account(stage, control_plane)
    with stage.operating(namespace):
        wanted = f"list /api/v1/namespaces/{namespace}/pods"
        await until(lambda: wanted in stage.refused(namespaces=(namespace,)), PATIENCE_S)


async def test_a_changed_retention_needs_the_right_to_delete_claims(
    stage: Stage, api: Api, control_plane: Cluster, namespace: str
) -> None:
    operator_rights.grant(api, stage.namespace, [namespace])
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{operator_rights.ACCOUNT}"
    every = operator_rights.rules()["runs"]
    fewer = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "delete"]}
        if rule["resources"] == ["persistentvolumeclaims"]
        else rule
        for rule in every
    ]
    api.patch(role, {"rules": fewer})
    act_as_the_account(stage, control_plane)
    async with scripted(api, namespace) as cluster:
        world = World(api, namespace, cluster, None)
        with stage.operating(namespace):
            world.create()
            await world.phase("Running", seconds=PATIENCE_S)
            world.edit({"storage": {"retain": False}})
            told = lambda: "one-volume" in world.condition("Blocked").get("message", "")  # noqa: E731
            await world.until("it is told", told, PATIENCE_S)
            assert world.condition("Blocked")["reason"] == "Refused", world.condition("Blocked")
            assert not owned(world)
            api.patch(role, {"rules": every})
            await world.until("the run owns its volume", lambda: owned(world), PATIENCE_S)
