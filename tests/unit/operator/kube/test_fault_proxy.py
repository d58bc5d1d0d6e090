import asyncio
import json
import ssl
import subprocess
import time
from pathlib import Path

import aiohttp
import pytest

from echorl_operator.kube import credentials
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.metrics import Metrics
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy, Upstream
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.waiting import until

PODS = "/api/v1/namespaces/ns/pods"
SERVICES = "/api/v1/namespaces/ns/services"


@pytest.fixture
async def client(proxy: FaultProxy):
    async with aiohttp.ClientSession(proxy.url, headers={"User-Agent": "tester/1"}) as session:
        yield session


def _object(name: str) -> dict:
    return {"metadata": {"name": name}}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "expected"),
    [
        ("GET", "/api/v1/namespaces/ns/pods", "", ("list", "pods", "ns", "", "")),
        ("GET", "/api/v1/namespaces/ns/pods?watch=1", "", ("watch", "pods", "ns", "", "")),
        ("GET", "/api/v1/pods", "", ("list", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces", "", ("list", "namespaces", "", "", "")),
        ("GET", "/api/v1/namespaces/ns", "", ("get", "namespaces", "", "ns", "")),
        ("GET", "/version", "", ("get", "", "", "", "")),
        ("GET", "/apis/apps/v1/namespaces/ns/statefulsets/a", "", ("get", "statefulsets", "ns", "a", "")),
        ("PUT", "/apis/g/v1/namespaces/ns/runs/a/status", "", ("update", "runs", "ns", "a", "status")),
        ("PATCH", "/api/v1/namespaces/ns/pods/a", "application/apply-patch+yaml", ("apply", "pods", "ns", "a", "")),
        ("PATCH", "/api/v1/namespaces/ns/pods/a", "application/json-patch+json", ("patch", "pods", "ns", "a", "")),
        ("POST", "/api/v1/namespaces/ns/pods", "", ("create", "pods", "ns", "", "")),
        ("DELETE", "/api/v1/namespaces/ns/pods/a", "", ("delete", "pods", "ns", "a", "")),
        ("DELETE", "/api/v1/namespaces/ns/pods", "", ("deletecollection", "pods", "ns", "", "")),
    ],
)
def test_requests_are_taken_apart(
    method: str, path: str, content_type: str, expected: tuple[str, str, str, str, str]
) -> None:
    path, _, query = path.partition("?")
    parameters = dict([query.split("=")]) if query else {}
    found = faults.describe(1, 0.0, method, path, parameters, {"Content-Type": content_type}, b"")
    assert (found.verb, found.resource, found.namespace, found.name, found.subresource) == expected


async def test_passes_on_and_records(client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi) -> None:
    async with client.post(PODS, json=_object("a")) as reply:
        assert reply.status == 201
    async with client.get(f"{PODS}/a") as reply:
        assert (await reply.json())["metadata"]["name"] == "a"
    async with client.get(f"{PODS}/b") as reply:
        assert reply.status == 404
    assert [record.status for record in proxy.records] == [201, 200, 404]
    (write,) = proxy.writes_by("tester")
    assert (write.request.verb, write.request.json()) == ("create", _object("a"))
    assert proxy.writes_by("somebody else") == []


@pytest.mark.parametrize(("after", "happened"), [(False, False), (True, True)])
async def test_the_third_write_fails_before_or_after_it_happened(
    client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi, after: bool, happened: bool
) -> None:
    fault = proxy.add(faults.fail(500, faults.writes, after=after, nth=3))
    statuses = []
    for name in "abcd":
        async with client.get(f"{PODS}/x"):
            pass
        async with client.post(PODS, json=_object(name)) as reply:
            statuses.append(reply.status)
    assert statuses == [201, 201, 500, 201]
    assert ((PODS, "c") in api.objects) is happened
    assert (fault.seen, fault.hits) == (4, 1)
    assert [record.fault is fault for record in proxy.writes_by()] == [False, False, True, False]


async def test_a_function_is_called_at_a_write(client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi) -> None:
    there: list[bool] = []
    for after in (False, True):
        proxy.add(faults.call(lambda _: there.append((PODS, "a") in api.objects), nth=1, after=after))
        async with client.post(PODS, json=_object("a")) as reply:
            assert reply.status == 201
        await api.remove(PODS, "a")
        proxy.clear()
    assert there == [False, True]


async def test_refusals_look_like_the_api_servers(client: aiohttp.ClientSession, proxy: FaultProxy) -> None:
    with proxy.fault(faults.throttle(3)):
        async with client.get(PODS) as reply:
            assert (reply.status, reply.headers["Retry-After"]) == (429, "3")
            assert (await reply.json())["reason"] == "TooManyRequests"
    with proxy.fault(faults.conflict()):
        headers = {"Content-Type": "application/apply-patch+yaml"}
        async with client.patch(f"{PODS}/a", data=b'{"metadata":{"name":"a"}}', headers=headers) as reply:
            assert (reply.status, (await reply.json())["kind"]) == (409, "Status")
        async with client.post(PODS, json=_object("a")) as reply:
            assert reply.status == 201, "only applies conflict"
    async with client.get(PODS) as reply:
        assert reply.status == 200, "the faults have ended"


async def test_dropped_connections(client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi) -> None:
    for after in (False, True):
        proxy.add(faults.drop(faults.writes, after=after, times=1))
        with pytest.raises(aiohttp.ClientError):
            await client.post(PODS, json=_object("a"))
        assert ((PODS, "a") in api.objects) is after


async def test_a_request_hangs_until_the_fault_ends(client: aiohttp.ClientSession, proxy: FaultProxy) -> None:
    fault = proxy.add(faults.hang(faults.of(resource="pods")))
    asking = asyncio.ensure_future(client.post(PODS, json=_object("a")))
    await until(lambda: fault.hits == 1)
    async with client.get(SERVICES) as reply:
        assert reply.status == 200
    assert not asking.done()
    proxy.remove(fault)
    with pytest.raises(aiohttp.ClientError):
        await asking


class Watcher:
    """Collects the lines of one watch."""

    def __init__(self, client: aiohttp.ClientSession, path: str = PODS) -> None:
        self.events: list[dict] = []
        self.ended: BaseException | str | None = None
        self._task = asyncio.ensure_future(self._run(client, path))

    async def _run(self, client: aiohttp.ClientSession, path: str) -> None:
        try:
            async with client.get(path, params={"watch": "1", "resourceVersion": "0", "timeoutSeconds": "60"}) as reply:
                async for line in reply.content:
                    self.events.append(json.loads(line))
            self.ended = "closed"
        except aiohttp.ClientError as error:
            self.ended = error

    def types(self) -> list[str]:
        return [event["type"] for event in self.events if event["type"] != "BOOKMARK"]


async def test_watches_pass_and_can_be_ended(client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi) -> None:
    pods, services = Watcher(client), Watcher(client, SERVICES)
    await api.set(PODS, "a")
    await until(lambda: pods.types() == ["ADDED"])
    await until(lambda: {request.resource for request in proxy.running_watches} == {"pods", "services"})
    assert proxy.end_watches(410, faults.of(resource="pods")) == 1
    await until(lambda: pods.ended == "closed")
    assert pods.events[-1]["type"] == "ERROR"
    assert pods.events[-1]["object"]["code"] == 410
    assert services.ended is None
    assert proxy.end_watches() == 1
    await until(lambda: isinstance(services.ended, aiohttp.ClientError))


async def test_a_silent_watch_says_all_afterwards(
    client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi
) -> None:
    watcher = Watcher(client)
    await until(lambda: bool(watcher.events))
    with proxy.fault(faults.silence()) as fault:
        await until(lambda: fault.hits >= 1)
        heard = len(watcher.events)
        for name in "abc":
            await api.set(PODS, name)
        late = Watcher(client)
        await until(lambda: len(proxy.running_watches) == 2)
        await until(lambda: fault.hits >= 2)
        assert len(watcher.events) == heard
        assert late.events == []
    await until(lambda: watcher.types() == ["ADDED"] * 3 == late.types())


async def test_a_delayed_watch_is_a_stale_view(client: aiohttp.ClientSession, proxy: FaultProxy, api: WireApi) -> None:
    with proxy.fault(faults.delay(0.3)):
        watcher = Watcher(client)
        await until(lambda: len(proxy.running_watches) == 1)
        written_at = time.monotonic()
        for number in range(100):
            await api.set(PODS, f"p{number}")
        await until(lambda: watcher.types() == ["ADDED"] * 100)
        assert 0.25 < time.monotonic() - written_at < 100 * 0.3 / 2, "late, but not each after the other"


async def test_stream_errors_and_expired_watches(client: aiohttp.ClientSession, proxy: FaultProxy) -> None:
    with proxy.fault(faults.stream_error(500)):
        watcher = Watcher(client)
        await until(lambda: watcher.ended == "closed")
        assert [event["object"]["code"] for event in watcher.events] == [500]
    with proxy.fault(faults.expire()):
        async with client.get(PODS, params={"watch": "1"}) as reply:
            assert reply.status == 410
        async with client.get(PODS) as reply:
            assert reply.status == 200


async def test_credentials_are_the_clients_or_the_upstreams(api: WireApi, tmp_path: Path) -> None:
    async with (
        FaultProxy(Upstream(api.url, {"Authorization": "Bearer admin"})) as proxy,
        aiohttp.ClientSession(proxy.url) as session,
    ):
        async with session.get(PODS):
            pass
        async with session.get(PODS, headers={"Authorization": "Bearer own"}):
            pass
        assert [request[3]["Authorization"] for request in api.requests] == ["Bearer admin", "Bearer own"]
        config = json.loads(proxy.write_kubeconfig(tmp_path / "kubeconfig", "tok").read_text())
        assert config["users"][0]["user"] == {"token": "tok"}
        assert config["clusters"][0]["cluster"]["server"] == proxy.url


async def test_serves_https_to_clients_that_trust_its_certificate(api: WireApi, tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=proxy"]
    await asyncio.to_thread(
        subprocess.run, [*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with FaultProxy(Upstream(api.url), tls=tls, ca=certificate) as proxy:
        found = credentials.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig"))
        async with Connection(found, Metrics()) as link:
            await link.request(Call("list", PODS, "pods"))
        assert proxy.url.startswith("https://")
        assert [record.status for record in proxy.records] == [200]
