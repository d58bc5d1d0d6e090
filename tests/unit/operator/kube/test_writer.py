import json
from typing import Any

import pytest

from echorl_operator.kube import errors
from echorl_operator.kube.cache import Cache
from echorl_operator.kube.connection import Connection
from echorl_operator.kube.lists import StreamSettings
from echorl_operator.kube.writer import NotLeading, Writer
from echorl_operator.metrics import Metrics
from echorl_operator.observed import decode
from echorl_operator.observed.records import Kind
from echorl_operator.observed.runs import RunKey
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.waiting import until

LABELS = {"echorl.dev/run": "r", "echorl.dev/run-uid": "uid"}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": LABELS}, "spec": {"x": 1}}
SERVICES = "/api/v1/namespaces/ns/services"
PODS = "/api/v1/namespaces/ns/pods"
RUNS = "/apis/echorl.dev/v1alpha1/namespaces/ns/echorlruns"


@pytest.fixture
def changes() -> list[RunKey]:
    return []


@pytest.fixture
def cache(connection: Connection, metrics: Metrics, changes: list[RunKey]) -> Cache:
    settings = StreamSettings(watch_s=1, silence_s=10, first_wait_s=0.01)
    return Cache(connection, ["ns"], on_change=changes.append, metrics=metrics, settings=settings)


@pytest.fixture
def writer(connection: Connection, cache: Cache) -> Writer:
    return Writer(connection, cache, may_write=lambda: True)


async def test_an_apply_is_forced_under_our_name_and_seen_at_once(
    writer: Writer, cache: Cache, api: WireApi, changes: list[RunKey]
) -> None:
    reply = json.loads(await writer.apply("ns", SERVICE))
    method, path, query, headers, body = api.requests[-1]
    assert (method, path) == ("PATCH", f"{SERVICES}/a")
    assert query == {"fieldManager": "echorl-operator", "force": "true"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert body == SERVICE
    child = cache.children[Kind.SERVICE].get("ns", "a")
    assert child is not None
    assert child.meta.uid == reply["metadata"]["uid"]
    assert changes == [RunKey("ns", "r")]
    assert cache.children_of("uid") == (child,)


async def test_an_apply_may_demand_a_version(writer: Writer, api: WireApi) -> None:
    await writer.apply("ns", SERVICE, "12")
    assert api.requests[-1][4]["metadata"]["resourceVersion"] == "12"
    assert "resourceVersion" not in SERVICE["metadata"]


async def test_a_conflict_is_told(writer: Writer, proxy: FaultProxy) -> None:
    with proxy.fault(faults.conflict()), pytest.raises(errors.Conflict):
        await writer.apply("ns", SERVICE)


async def test_a_create_leaves_what_is_there(writer: Writer, api: WireApi) -> None:
    assert await writer.create("ns", SERVICE)
    assert not await writer.create("ns", {**SERVICE, "spec": {"x": 2}})
    assert api.objects[SERVICES, "a"]["spec"] == {"x": 1}


async def test_labels_are_given_back_and_nothing_else(writer: Writer, api: WireApi) -> None:
    await writer.create("ns", {**SERVICE, "metadata": {"name": "a"}})
    await writer.relabel("ns", {**SERVICE, "spec": {"x": 2}})
    held = api.objects[SERVICES, "a"]
    assert held["metadata"]["labels"] == LABELS
    assert held["spec"] == {"x": 1}


async def test_a_delete_means_one_object(writer: Writer, cache: Cache, api: WireApi) -> None:
    uid = json.loads(await writer.apply("ns", SERVICE))["metadata"]["uid"]
    assert await writer.delete("ns", "v1", "Service", "a", uid=uid, grace_s=0)
    assert api.requests[-1][4] == {
        "preconditions": {"uid": uid},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 0,
    }
    assert cache.children_of("uid") == ()
    assert not await writer.delete("ns", "v1", "Service", "a", uid=uid), "it is gone"


async def test_a_delete_leaves_a_successor(writer: Writer, cache: Cache, api: WireApi) -> None:
    await writer.apply("ns", SERVICE)
    assert not await writer.delete("ns", "v1", "Service", "a", uid="older")
    assert (SERVICES, "a") in api.objects
    assert len(cache.children_of("uid")) == 1


async def test_a_pod_that_went_while_it_was_deleted_is_left_to_the_watch(
    writer: Writer, cache: Cache, api: WireApi
) -> None:
    pod = await api.set(PODS, "p", metadata={"labels": LABELS}, apiVersion="v1", kind="Pod")
    cache.observe_write(json.dumps(pod).encode())
    api.deletion = lambda gone: {**gone, "metadata": {**gone["metadata"], "resourceVersion": ""}}
    assert await writer.delete("ns", "v1", "Pod", "p", uid=pod["metadata"]["uid"])
    assert cache.pods.get("ns", "p") is not None


async def test_a_gate_is_lifted_from_the_pod_that_was_seen(writer: Writer, api: WireApi) -> None:
    pod = await api.set(PODS, "p", metadata={"labels": LABELS}, apiVersion="v1", kind="Pod")
    meta = pod["metadata"]
    await writer.lift_gate("ns", "p", uid=meta["uid"], resource_version=meta["resourceVersion"])
    _, _, _, headers, body = api.requests[-1]
    assert headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert body["spec"]["schedulingGates"] == [{"$patch": "delete", "name": "echorl.dev/attempt"}]
    with pytest.raises(errors.Conflict):
        await writer.lift_gate("ns", "p", uid=meta["uid"], resource_version=meta["resourceVersion"])
    with pytest.raises(errors.NotFound):
        await writer.lift_gate("ns", "q", uid="u", resource_version="1")


async def _run(api: WireApi) -> dict[str, Any]:
    return await api.set(RUNS, "r", apiVersion="echorl.dev/v1alpha1", kind="EchoRLRun", spec={"model": {}})


async def test_a_status_is_written_at_the_version_that_was_read(writer: Writer, cache: Cache, api: WireApi) -> None:
    run = decode.run(json.dumps(await _run(api)).encode())
    after = await writer.write_status(run, {"phase": "Pending"})
    method, path, _, _, body = api.requests[-1]
    assert (method, path) == ("PUT", f"{RUNS}/r/status")
    assert body["metadata"]["resourceVersion"] == run.resource_version
    assert after.status == {"phase": "Pending"}
    assert cache.runs.get("ns", "r") == after
    with pytest.raises(errors.Conflict):
        await writer.write_status(run, {"phase": "Running"})


async def test_nothing_is_sent_without_leadership(connection: Connection, cache: Cache, api: WireApi) -> None:
    writer = Writer(connection, cache, may_write=lambda: False)
    before = len(api.requests)
    for call in (
        writer.apply("ns", SERVICE),
        writer.create("ns", SERVICE),
        writer.delete("ns", "v1", "Service", "a", uid="u"),
        writer.delete_run(RunKey("ns", "r"), "u"),
        writer.lift_gate("ns", "p", uid="u", resource_version="1"),
    ):
        with pytest.raises(NotLeading):
            await call
    assert len(api.requests) == before


async def test_an_unknown_kind_is_refused(writer: Writer) -> None:
    with pytest.raises(ValueError, match="found kind batch/v1/Job, accepted are apps/v1/ControllerRevision"):
        await writer.apply("ns", {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}})
    with pytest.raises(ValueError, match=r"metadata.name of a Service: found None"):
        await writer.apply("ns", {"apiVersion": "v1", "kind": "Service", "metadata": {}})


async def test_all_kinds_are_watched_and_gauged(
    writer: Writer, cache: Cache, metrics: Metrics, changes: list[RunKey], start, api: WireApi
) -> None:
    await _run(api)
    await api.set(PODS, "p", metadata={"labels": LABELS})
    start(cache.run())
    await cache.wait_synced(60)
    assert cache.synced
    assert [pod.meta.name for pod in cache.pods_of("uid")] == ["p"]
    assert cache.runs.get("ns", "r") is not None
    assert changes.count(RunKey("ns", "r")) >= 2
    secret = next(one for one in api.requests if one[1].endswith("/secrets"))
    assert "PartialObjectMetadata" in secret[3]["Accept"], "values of secrets stay where they are"
    labels = {"resource": "pods", "namespace": "ns"}
    assert metrics.registry.get_sample_value("echorl_operator_watch_age_seconds", labels) is not None
    assert metrics.registry.get_sample_value("echorl_operator_cached_objects", {"resource": "pods"}) == 1
    await until(lambda: len(cache.streams) == 12)


async def test_what_is_late_is_named(cache: Cache, start, proxy: FaultProxy) -> None:
    proxy.add(faults.fail(500, faults.of(resource="deployments")))
    start(cache.run())
    with pytest.raises(TimeoutError, match="not listed after 5 s: deployments"):
        await cache.wait_synced(5)


async def test_annotations_stand_beside_what_is_applied(writer: Writer, api: WireApi) -> None:
    sets = "/apis/apps/v1/namespaces/ns/statefulsets"
    await api.set(sets, "t", metadata={"name": "t", "uid": "u", "annotations": {"echorl.dev/hash": "h"}})
    await writer.annotate("ns", "StatefulSet", "t", uid="u", annotations={"echorl.dev/retry": "now"})
    method, path, query, headers, body = api.requests[-1]
    assert (method, path, query) == ("PATCH", f"{sets}/t", {"fieldManager": "echorl-operator"})
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert body == {"metadata": {"uid": "u", "annotations": {"echorl.dev/retry": "now"}}}
