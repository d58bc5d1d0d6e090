"""The operator's I/O layer against a real API server, through the fault proxy."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from echorl_operator import names
from echorl_operator.diagnosis import refusals
from echorl_operator.kube import credentials, errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import POD
from echorl_operator.kube.writer import Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunKey
from echorl_operator.plan.drift import needs_apply
from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection as ClusterConnection
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.run_objects import Runs, install_crd
from echorl_testing.manifests.documents import with_value
from echorl_testing.operator.operator_io import LABELS, Io, config_map, gated_pod, opened
from echorl_testing.operator.rendered import MANIFESTS, SETTINGS, children, manifest, pod_specs, rendered
from echorl_testing.waiting import until


@pytest.fixture(scope="module", autouse=True)
def crd(api: Api) -> dict[str, Any]:
    return install_crd(api)


@pytest.fixture
async def io(connection: ClusterConnection, namespace: str, tmp_path: Path) -> AsyncIterator[Io]:
    async with opened(connection.kubeconfig, namespace, tmp_path) as found:
        yield found


@pytest.fixture
def proxy(io: Io) -> FaultProxy:
    return io.proxy


@pytest.fixture
def link(io: Io) -> Connection:
    return io.link


@pytest.fixture
def cache(io: Io) -> Cache:
    return io.cache


@pytest.fixture
def writer(io: Io) -> Writer:
    return io.writer


@pytest.fixture
def changes(io: Io) -> list[RunKey]:
    return io.changes


ON_NODES = {"host": True, "interface": "eth0", "rdma": {"resource": "rdma/hca_shared_devices_a"}}


def documents() -> dict[str, dict[str, Any]]:
    """Runs by name; one of them on its nodes' network."""
    found = {name: manifest(name) for name in sorted(MANIFESTS)}
    found["on-nodes"] = with_value(
        with_value(found["two-pods"], "spec.trainer.network", ON_NODES), "metadata.name", "on-nodes"
    )
    return found


@pytest.mark.parametrize("name", documents())
async def test_what_is_built_and_applied_needs_no_second_apply(
    writer: Writer, cache: Cache, api: Api, namespace: str, name: str
) -> None:
    document = documents()[name]
    run = Runs(api, namespace).created(document)
    settings = SETTINGS.model_copy(update={"host_network_cidrs": ("10.0.0.0/16", "fd00::/64")})
    bodies = children(rendered(document, uid=run["metadata"]["uid"], settings=settings))
    for body in bodies:
        body["metadata"]["namespace"] = namespace
        reply = await writer.apply(namespace, body)
        assert not needs_apply(body, json.loads(reply)), body["kind"]
    await until(lambda: len(cache.pods_of(run["metadata"]["uid"])) >= 2)
    watched = {(child.kind, child.meta.name): child for child in cache.children_of(run["metadata"]["uid"])}
    for body in bodies:
        if body["kind"] == "Pod":
            continue
        child = watched[Kind(body["kind"]), body["metadata"]["name"]]
        assert child.meta.run == document["metadata"]["name"]
        assert not needs_apply(body, child.body), body["kind"]
        changed = {**body, "metadata": {**body["metadata"], "labels": {**body["metadata"]["labels"], "x": "y"}}}
        assert child.kind is Kind.SECRET or needs_apply(changed, child.body)


async def test_writes_are_known_at_once_and_deletions_too(
    writer: Writer, cache: Cache, namespace: str, changes: list[RunKey], proxy: FaultProxy
) -> None:
    with proxy.fault(faults.silence()):
        await writer.apply(namespace, config_map("a", x="1"))
        (child,) = cache.children_of("run-uid")
        assert (child.kind, child.meta.name) == (Kind.CONFIG_MAP, "a")
        assert changes == [RunKey(namespace, "r")]
        assert not await writer.delete(namespace, "v1", "ConfigMap", "a", uid="another")
        assert len(cache.children_of("run-uid")) == 1
        assert await writer.delete(namespace, "v1", "ConfigMap", "a", uid=child.meta.uid)
        assert cache.children_of("run-uid") == ()
        assert not await writer.delete(namespace, "v1", "ConfigMap", "a", uid=child.meta.uid)
    await writer.apply(namespace, config_map("b"))
    await until(lambda: [child.meta.name for child in cache.children_of("run-uid")] == ["b"])


async def test_a_create_of_what_is_there_changes_nothing(writer: Writer, api: Api, namespace: str) -> None:
    assert await writer.create(namespace, config_map("a", x="1"))
    assert not await writer.create(namespace, config_map("a", x="2"))
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/a")["data"] == {"x": "1"}


async def test_an_apply_at_an_old_version_conflicts(writer: Writer, namespace: str) -> None:
    old = json.loads(await writer.apply(namespace, config_map("a", x="1")))["metadata"]["resourceVersion"]
    await writer.apply(namespace, config_map("a", x="2"), old)
    with pytest.raises(errors.Conflict) as refused:
        await writer.apply(namespace, config_map("a", x="3"), old)
    assert not refused.value.uid_differs


async def test_values_of_secrets_never_come_here(api: Api, cache: Cache, namespace: str, link: Connection) -> None:
    secret = {"metadata": {"name": "s", "labels": LABELS}, "stringData": {"token": "value"}}
    api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    await until(lambda: [child.kind for child in cache.children_of("run-uid")] == [Kind.SECRET])
    reply = await link.request(
        Call(
            "list",
            f"/api/v1/namespaces/{namespace}/secrets",
            "secrets",
            accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        )
    )
    assert b'"name":"s"' in reply
    assert base64.b64encode(b"value") not in reply


async def test_only_our_gate_is_lifted_and_only_of_the_pod_that_was_seen(
    writer: Writer, cache: Cache, api: Api, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, gated_pod("p", "example.test/other", names.SCHEDULING_GATE))
    await until(lambda: len(cache.pods_of("run-uid")) == 1)
    (pod,) = cache.pods_of("run-uid")
    assert pod.gated
    with pytest.raises((errors.Conflict, errors.Invalid)):
        await writer.lift_gate(namespace, "p", uid="another", resource_version=pod.meta.resource_version)
    api.patch(f"{pods}/p", {"metadata": {"annotations": {"changed": "1"}}})
    with pytest.raises(errors.Conflict):
        await writer.lift_gate(namespace, "p", uid=pod.meta.uid, resource_version=pod.meta.resource_version)
    await until(lambda: cache.pods_of("run-uid")[0].meta.resource_version != pod.meta.resource_version)
    (pod,) = cache.pods_of("run-uid")
    await writer.lift_gate(namespace, "p", uid=pod.meta.uid, resource_version=pod.meta.resource_version)
    assert not cache.pods_of("run-uid")[0].gated
    assert api.get(f"{pods}/p")["spec"]["schedulingGates"] == [{"name": "example.test/other"}]


async def test_the_last_gate_is_lifted(writer: Writer, cache: Cache, api: Api, namespace: str) -> None:
    api.create(f"/api/v1/namespaces/{namespace}/pods", gated_pod("p", names.SCHEDULING_GATE))
    await until(lambda: len(cache.pods_of("run-uid")) == 1)
    (pod,) = cache.pods_of("run-uid")
    await writer.lift_gate(namespace, "p", uid=pod.meta.uid, resource_version=pod.meta.resource_version)
    await until(lambda: "no nodes" in cache.pods_of("run-uid")[0].unscheduled)


async def test_a_pod_that_is_deleted_stays_until_it_is_gone(
    writer: Writer, cache: Cache, api: Api, namespace: str
) -> None:
    body = gated_pod("p")
    body["metadata"]["finalizers"] = ["example.test/hold"]
    api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    await until(lambda: len(cache.pods_of("run-uid")) == 1)
    (pod,) = cache.pods_of("run-uid")
    assert await writer.delete(namespace, "v1", "Pod", "p", uid=pod.meta.uid, grace_s=0)
    assert cache.pods_of("run-uid")[0].meta.deleted_at is not None
    api.patch(f"/api/v1/namespaces/{namespace}/pods/p", {"metadata": {"finalizers": None}})
    await until(lambda: cache.pods_of("run-uid") == ())


async def test_a_status_is_written_once_per_version(
    writer: Writer, cache: Cache, api: Api, namespace: str, changes: list[RunKey]
) -> None:
    document = manifest("quickstart")
    name = document["metadata"]["name"]
    Runs(api, namespace).created(document)
    await until(lambda: cache.runs.get(namespace, name) is not None)
    run = cache.runs.get(namespace, name)
    assert run is not None
    status = {"phase": "Pending", "message": "one", "attempt": 1, "observedGeneration": run.generation}
    after = await writer.write_status(run, status)
    assert after.status == status
    assert after.spec == run.spec
    assert cache.runs.get(namespace, name) == after
    with pytest.raises(errors.Conflict):
        await writer.write_status(run, {**status, "message": "two"})
    replaced = await writer.write_status(after, {"phase": "Running", "attempt": 1})
    assert replaced.status == {"phase": "Running", "attempt": 1}, "the whole status is replaced"
    assert replaced.generation == run.generation
    with pytest.raises(errors.ApiError):
        await writer.write_status(replaced, {"phase": 3})
    assert await writer.delete_run(run.key, run.uid)
    await until(lambda: cache.runs.get(namespace, name) is None)


async def test_refusals_are_told_apart(writer: Writer, api: Api, namespace: str, link: Connection) -> None:
    core = f"/api/v1/namespaces/{namespace}"
    api.create(f"{core}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "0"}}})
    # Admission knows of quotas and labels from watches of its own.
    tried = {"metadata": {"name": "tried"}}
    wait_for("the quota counts", lambda: "exceeded quota" in refused_on(api, f"{core}/configmaps", tried), seconds=120)
    with pytest.raises(errors.Refused, match="exceeded quota: q"):
        await writer.apply(namespace, config_map("a"))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 0}]}}
    with pytest.raises(errors.Invalid) as refused:
        await writer.apply(namespace, service)
    assert any(cause.field == "spec.ports[0].port" for cause in refused.value.causes)
    with pytest.raises(errors.NotFound):
        await link.request(Call("get", f"{core}/pods/none", "pods"))
    with pytest.raises(errors.BadRequest):
        await link.request(Call("create", f"{core}/pods", "pods", body=b"no json"))
    api.patch(
        f"/api/v1/namespaces/{namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    wait_for("the label counts", lambda: "PodSecurity" in refused_on(api, f"{core}/pods", gated_pod("q")), seconds=120)
    with pytest.raises(errors.Refused, match="violates PodSecurity"):
        await writer.apply(namespace, gated_pod("p"))


@pytest.mark.parametrize("level", ["baseline", "restricted"])
@pytest.mark.parametrize("network", [{"host": True}, {"rdma": ON_NODES["rdma"]}], ids=["host", "rdma"])
def test_a_namespace_that_enforces_more_than_a_nodes_network_may_have_is_told(
    api: Api, make_namespace: Callable[..., str], level: str, network: dict[str, Any]
) -> None:
    namespace = make_namespace({"pod-security.kubernetes.io/enforce": level})
    document = with_value(manifest("two-pods"), "spec.trainer.network", network)
    settings = SETTINGS.model_copy(update={"host_network_cidrs": ("10.0.0.0/16",)})
    template = dict(pod_specs(rendered(document, settings=settings)))["trainer"]
    body = {"metadata": {"name": "rank"}, "spec": {**template, "serviceAccountName": "default"}}
    path = f"/api/v1/namespaces/{namespace}/pods"
    wait_for("the label counts", lambda: "violates PodSecurity" in refused_on(api, path, body), seconds=120)
    assert refusals.read(refused_on(api, path, body)).words.endswith("enforce: privileged")


def refused_on(api: Api, path: str, body: dict[str, Any]) -> str:
    """Why the API server would not create an object; empty if it would."""
    try:
        api.request("POST", path, body, query={"dryRun": "All"})
    except ApiError as error:
        if error.code != 403:
            raise
        return str(error)
    return ""


async def test_a_terminating_namespace_refuses(
    writer: Writer, cache: Cache, api: Api, make_namespace: Callable[..., str]
) -> None:
    doomed = make_namespace()
    held = {"metadata": {"name": "held", "finalizers": ["example.test/hold"]}}
    api.create(f"/api/v1/namespaces/{doomed}/configmaps", held)
    api.delete(f"/api/v1/namespaces/{doomed}")
    with pytest.raises(errors.Refused) as refused:
        await writer.apply(doomed, config_map("a"))
    assert refused.value.namespace_terminating
    api.patch(f"/api/v1/namespaces/{doomed}/configmaps/held", {"metadata": {"finalizers": None}})


async def test_a_missing_right_is_forbidden(connection: ClusterConnection, namespace: str, tmp_path: Path) -> None:
    path = connection.write_kubeconfig(tmp_path / "mallory", token=connection.user_tokens["mallory"])
    async with Connection(credentials.from_kubeconfig(path), Metrics()) as link:
        with pytest.raises(errors.Forbidden):
            await link.request(Call("create", POD.path(namespace), "pods", body=gated_pod("p")))
        with pytest.raises(errors.Forbidden):
            await link.request(Call("list", POD.path(namespace), "pods"))
    path = connection.write_kubeconfig(tmp_path / "nobody", token="wrong")
    async with Connection(credentials.from_kubeconfig(path), Metrics()) as link:
        with pytest.raises(errors.Unauthorized):
            await link.request(Call("list", POD.path(namespace), "pods"))


async def test_a_service_account_with_its_rotated_token(
    control_plane: Cluster, connection: ClusterConnection, namespace: str, tmp_path: Path
) -> None:
    host, port = connection.server.removeprefix("https://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    token = tmp_path / "token"
    token.write_text("not yet")
    found = credentials.in_cluster(environ, token, connection.ca_file)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    call = Call("create", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "selfsubjectreviews", body=review)
    async with Connection(found, Metrics()) as link:
        with pytest.raises(errors.Unauthorized):
            await link.request(call)
        token.write_text(control_plane.service_account_token(namespace, "default"))
        await found.load()
        me = json.loads(await link.request(call))["status"]["userInfo"]["username"]
    assert me == f"system:serviceaccount:{namespace}:default"
