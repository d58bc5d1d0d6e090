"""The broker as a process of its own beside a played run: what its tests on a real API server ask and look at."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from echorl_core.run_token import sandboxes_key
from echorl_operator import names
from echorl_operator.observed.times import to_text
from echorl_operator.orchestrators.tokens import from_file
from echorl_testing.cluster.api import Api
from echorl_testing.manifests.documents import with_name
from echorl_testing.ports import free_port
from echorl_testing.sandboxes.agent_sandbox_controller import played_controller
from echorl_testing.waiting import until

_FILES = Path(__file__).resolve().parents[4] / "charts" / "echorl" / "files"
RULES: Mapping[str, tuple[Path, ...]] = {
    "pod": (_FILES / "broker-rules.yaml",),
    "agent-sandbox": (_FILES / "broker-rules.yaml", _FILES / "agent-sandbox-rules.yaml"),
}
"""Of the broker where runs may have a provider."""
ACCOUNT = "echorl-broker"
DAEMON_IMAGE = "echorl/sandbox-daemon:test"
SANDBOXES: Mapping[str, Any] = {
    "provider": "pod",
    "resources": {"cpu": 1, "memory": "256Mi", "disk": "1Gi"},
    "concurrency": 2,
    "ttl": "10m",
}
WANTED: Mapping[str, Any] = {
    "image": "registry.example.com/task:1",
    "workdir": "/task",
    "limits": {"cpu": 0.5, "memory_bytes": 64 << 20, "disk_bytes": 64 << 20},
    "ttl_s": 300.0,
}
_GRACE_S = 20.0
_MADE_S = 60.0
_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def grant(api: Api, namespace: str, provider: str = "pod") -> None:
    """Make the broker's service account in a namespace, with exactly its rights there."""
    rules = [rule for file in RULES[provider] for rule in yaml.safe_load(file.read_text())]
    api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    where = f"{_RBAC}/namespaces/{namespace}"
    api.create(f"{where}/roles", {"metadata": {"name": ACCOUNT}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    api.create(f"{where}/rolebindings", {"metadata": {"name": ACCOUNT}, "roleRef": reference, "subjects": [subject]})


@asynccontextmanager
async def broker_process(
    kubeconfig: Path, namespace: str, folder: Path, settings: Mapping[str, Any] | None = None, *arguments: str
) -> AsyncIterator[str]:
    """``python -m echorl_broker`` for one namespace; its URL. Its output is appended to ``folder/broker.log``.

    Raises:
        AssertionError: it did not begin, or not end with 0 when it was told to.
    """
    file, port = folder / "broker.yaml", free_port()
    key = master_key(folder)
    file.write_text(yaml.safe_dump({"daemonImage": DAEMON_IMAGE, **(settings or {}), "masterKeyPath": str(key)}))
    command = [
        *(sys.executable, "-P", "-m", "echorl_broker", "--settings", str(file), "--kubeconfig", str(kubeconfig)),
        *("--namespace", namespace, "--bind", "127.0.0.1", "--port", str(port)),
        *("--metrics-port", str(free_port()), *arguments),
    ]
    process = _started(command, folder)
    url = f"http://127.0.0.1:{port}"
    try:
        await _answers(url, process, folder)
        yield url
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, _GRACE_S)
        assert code == 0, (folder / "broker.log").read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _started(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "broker.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))


def master_key(folder: Path) -> Path:
    """The key of all brokers of a folder."""
    key = folder / "master-key"
    if not key.exists():
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
    return key


async def _answers(url: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            assert process.poll() is None, (folder / "broker.log").read_text()[-4000:]
            try:
                async with session.get(f"{url}/healthz") as response:
                    assert response.status == 200
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


class PlayedRun:
    """A run of a real API server whose operator and orchestrator the test is."""

    def __init__(self, api: Api, namespace: str, folder: Path, name: str = "one", **sandboxes: Any) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.path = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
        body = with_name(name, sandboxes={**SANDBOXES, **sandboxes})
        self.uid: str = api.create(self.path.rpartition("/")[0], body)["metadata"]["uid"]
        self.key = sandboxes_key(from_file(master_key(folder)).token(self.uid))
        self.phase("Running")

    def phase(self, phase: str) -> None:
        """Write the run's phase, as its operator does."""
        self.api.patch(f"{self.path}/status", {"status": {"phase": phase}})

    def start_orchestrator(self, ip: str = "10.9.8.7") -> str:
        """Make the orchestrator's pod; its uid."""
        name = names.orchestrator(self.name)
        labels = {
            names.LABEL_RUN: self.name,
            names.LABEL_RUN_UID: self.uid,
            names.LABEL_ROLE: "orchestrator",
            names.LABEL_ATTEMPT: "3",
        }
        owner = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": names.KIND, "controller": True}
        body = {
            "metadata": {
                "name": name,
                "labels": labels,
                "ownerReferences": [{**owner, "name": self.name, "uid": self.uid}],
            },
            "spec": {
                "containers": [{"name": "orchestrator", "image": "none", "securityContext": _CONTAINER}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                # The test plays it: no node takes it.
                "nodeSelector": {"played-by": "the-test"},
                "automountServiceAccountToken": False,
            },
        }
        made = self.api.create(self._pods, body)
        self.play(name, {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})
        uid: str = made["metadata"]["uid"]
        return uid

    def end_orchestrator(self) -> None:
        """Remove the orchestrator's pod at once."""
        self.api.delete(f"{self._pods}/{names.orchestrator(self.name)}", grace_s=0)

    def sandboxes(self) -> list[dict[str, Any]]:
        """Its sandbox pods."""
        selector = f"{names.LABEL_ROLE}={names.SANDBOX},{names.LABEL_RUN_UID}={self.uid}"
        found: list[dict[str, Any]] = self.api.get(self._pods, labelSelector=selector)["items"]
        return found

    def of_key(self, key: str) -> list[dict[str, Any]]:
        """Those pods that are a key's, deleted ones too."""
        return [pod for pod in self.sandboxes() if pod["metadata"]["annotations"].get("echorl.dev/sandbox-key") == key]

    def play(self, pod: str, status: Mapping[str, Any]) -> None:
        """Change a pod's status as its kubelet would."""
        self.api.patch(f"{self._pods}/{pod}/status", {"status": dict(status)})

    def up(self, ip: str = "10.9.8.1") -> None:
        """Let every sandbox be ready."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": to_text(time.time())}
        for pod in self.sandboxes():
            status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
            self.play(pod["metadata"]["name"], status)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


class Asker:
    """Requests to a broker with one run's key."""

    def __init__(self, session: aiohttp.ClientSession, url: str, run: PlayedRun, key: str | None = None) -> None:
        """``key``: another than the run's."""
        self._session, self._url, self._run = session, url, run
        self._headers = {"Authorization": f"Bearer {key or run.key}"}

    async def put(self, key: str = "a", wait_s: float = 0.0, **wanted: Any) -> tuple[int, dict[str, Any]]:
        """Ask for a sandbox: status and body of the answer."""
        body = {"run_uid": self._run.uid, **WANTED, **wanted}
        return await self._ask("PUT", f"/{key}?wait_s={wait_s}", body)

    async def made(self, key: str, **wanted: Any) -> dict[str, Any]:
        """What is told of a sandbox whose pod had to be made."""
        assert (await self.put(key, **wanted))[0] == 202
        await until(lambda: len(self._run.of_key(key)) == 1, _MADE_S)
        self._run.up()
        status, ready = await self.put(key, wait_s=_MADE_S, **wanted)
        assert status == 200, ready
        return ready

    async def get(self, key: str = "a") -> tuple[int, dict[str, Any]]:
        """Look at a sandbox: status and body of the answer."""
        return await self._ask("GET", f"/{key}")

    async def delete(self, key: str = "a") -> int:
        """End a sandbox: status of the answer."""
        return (await self._ask("DELETE", f"/{key}"))[0]

    async def all(self) -> tuple[int, dict[str, Any]]:
        """Ask for all, as an orchestrator does at its start: status and body of the answer."""
        return await self._ask("GET", "")

    async def keys(self) -> list[str]:
        """Keys of what is there."""
        listed: list[str] = (await self.all())[1]["keys"]
        return listed

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        run = self._run
        url = f"{self._url}/runs/{run.namespace}/{run.name}/sandboxes{path}"
        async with self._session.request(method, url, json=body, headers=self._headers) as response:
            return response.status, await response.json() if response.status != 204 else {}


class Site:
    """A namespace with a broker at work."""

    def __init__(
        self, api: Api, namespace: str, folder: Path, url: str, session: aiohttp.ClientSession, provider: str
    ) -> None:
        self.api, self.namespace, self.url = api, namespace, url
        self._folder, self._session, self._provider = folder, session, provider

    def run(self, name: str = "one", **sandboxes: Any) -> tuple[PlayedRun, Asker]:
        """A run, and who asks for its sandboxes; of the site's provider if no other is named."""
        run = PlayedRun(self.api, self.namespace, self._folder, name, **{"provider": self._provider, **sandboxes})
        return run, Asker(self._session, self.url, run)

    def asker(self, run: PlayedRun, key: str) -> Asker:
        """Somebody who asks for a run's sandboxes with another key."""
        return Asker(self._session, self.url, run, key)

    async def keep_to_one_pod(self, patience_s: float) -> Callable[[], object]:
        """A quota ``few`` of one pod, which counts when this returns; the answer lifts it."""
        quotas = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        path, pods = f"{quotas}/few", f"/api/v1/namespaces/{self.namespace}/pods"
        async with asyncio.timeout(patience_s):
            while True:
                self.api.create(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"count/pods": "1"}}})
                await until(lambda: self.api.get(path).get("status", {}).get("hard") is not None, patience_s)
                # Who counts may not have heard of the newest pod, and counts again only minutes later, or a new quota.
                if int(self.api.get(path)["status"]["used"]["count/pods"]) == len(self.api.get(pods)["items"]):
                    break
                self.api.delete(path)
        return lambda: self.api.delete(path)


class Sites:
    """Starts brokers for one namespace, all of one master key."""

    def __init__(self, api: Api, kubeconfig: Path, namespace: str, folder: Path, provider: str = "pod") -> None:
        """``kubeconfig``: of the broker's account; ``provider``: of its runs."""
        self._api, self._kubeconfig, self._namespace, self._folder = api, kubeconfig, namespace, folder
        self._provider = provider

    @asynccontextmanager
    async def __call__(
        self, settings: Mapping[str, Any] | None = None, *arguments: str, controller: bool = True
    ) -> AsyncIterator[Site]:
        """One, with further settings and arguments; beside it, where sandboxes are agent-sandbox's, its controller."""
        of_provider = self._provider == "agent-sandbox"
        own = {"agentSandbox": of_provider, **(settings or {})}
        process = broker_process(self._kubeconfig, self._namespace, self._folder, own, *arguments)
        playing: AbstractAsyncContextManager[None] = nullcontext()
        if of_provider and controller:
            playing = played_controller(self._api, self._namespace)
        try:
            async with process as url, aiohttp.ClientSession() as session, playing:
                yield Site(self._api, self._namespace, self._folder, url, session, self._provider)
        except Exception:
            sys.stdout.write((self._folder / "broker.log").read_text()[-20_000:])
            raise
