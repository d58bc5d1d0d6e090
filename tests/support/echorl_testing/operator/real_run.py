"""A run whose pods run: what its tests do to it and ask of it, on a namespace with the operator at work."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from echorl_operator import names
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.nodes import is_ready

_POLL_S = 0.2
_LOG_LINES = 40
_NEW_STEPS = 4
"""More than sealed batches and a late answer can account for."""


class RealRun:
    """One EchoRLRun and its pods."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        still_works: Callable[[], str | None],
        say: Callable[[str], object] = print,
    ) -> None:
        """``still_works``: None, or why waiting has become useless. ``say``: takes notes."""
        self.cluster, self.namespace, self.name = cluster, namespace, name
        self.api: Api = cluster.api
        self._still_works, self._say = still_works, say
        self._began = time.monotonic()
        self.path = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"

    def create(self, document: Mapping[str, Any]) -> None:
        """Apply the manifest; the clock of ``note`` starts."""
        self._began = time.monotonic()
        self.api.create(self.path, dict(document))

    def note(self, what: str) -> None:
        """Say what was reached and when, in seconds since the manifest was applied (``pytest -s`` shows it)."""
        self._say(f"{time.monotonic() - self._began:7.1f} s  {what}")

    def edit(self, spec: Mapping[str, Any]) -> None:
        """Change fields of the spec."""
        self.api.patch(f"{self.path}/{self.name}", {"spec": dict(spec)})

    def status(self) -> dict[str, Any]:
        """What the operator says."""
        found: dict[str, Any] = self.api.get(f"{self.path}/{self.name}").get("status", {})
        return found

    def pods(self, role: str | None = None) -> dict[str, dict[str, Any]]:
        """Pods of the run by name, those of one role or all."""
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {
            pod["metadata"]["name"]: pod
            for pod in items
            if role is None or pod["metadata"]["labels"].get(names.LABEL_ROLE) == role
        }

    def pod(self, role: str) -> dict[str, Any]:
        """The one pod of a role."""
        (found,) = self.pods(role).values()
        return found

    def ended_well(self, role: str) -> bool:
        """Whether the one pod of a role has ended with code 0, and is still there for its log."""
        return str(self.pod(role)["status"]["phase"]) == "Succeeded"

    def kill(self, role: str) -> None:
        """End the processes of a role's container in place, at once, as the kernel does when memory runs out."""
        (status,) = self.pod(role)["status"]["containerStatuses"]
        self.cluster.node.kill_container(status["containerID"])

    def inside(self, role: str, *command: str) -> str:
        """What a command prints inside a role's container."""
        return self.cluster.kubectl("-n", self.namespace, "exec", self.pod(role)["metadata"]["name"], "--", *command)

    def until(self, what: str, question: Callable[[], Any], seconds: float) -> Any:
        """The first true answer.

        Raises:
            AssertionError: there is none in time, or the operator ended; with status, pods and ends of their logs.
        """
        end = time.monotonic() + seconds
        while not (answer := question()):
            ended = self._still_works()
            if ended is not None or time.monotonic() > end:
                raise AssertionError(f"{ended or f'not within {seconds:.0f} s'}: {what}\n{self.told()}")
            time.sleep(_POLL_S)
        return answer

    def phase(self, phase: str, seconds: float, attempt: int | None = None) -> dict[str, Any]:
        """The status, once the run is in a phase (and attempt).

        Raises:
            AssertionError: it failed instead, or is not there in time.
        """

        def reached() -> dict[str, Any] | None:
            status = self.status()
            if status.get("phase") == "Failed" != phase:
                raise AssertionError(f"the run failed\n{self.told()}")
            return status if status.get("phase") == phase and attempt in {None, status.get("attempt")} else None

        found: dict[str, Any] = self.until(f"phase {phase}, attempt {attempt}", reached, seconds)
        return found

    def ready(self, role: str, seconds: float) -> None:
        """Wait until there are pods of a role and every one is ready."""
        self.until(f"{role} is ready", lambda: (pods := self.pods(role)) and all(map(is_ready, pods.values())), seconds)

    def started(self, seconds: float) -> None:
        """Wait for each stage of a start, up to the first checkpoint, and note when it was reached."""
        self.until("prepare has begun", lambda: self.pods("prepare"), seconds)
        self.note("the pod that prepares is there")
        self.until("the gang is asked for", lambda: self.status().get("phase") in {"Starting", "Running"}, seconds)
        self.note("prepared")
        for role in ("trainer", "orchestrator", "inference"):
            self.ready(role, seconds)
            self.note(f"{role} is ready")
        self.phase("Running", seconds, attempt=1)
        self.until("the first step", lambda: self.status().get("step"), seconds)
        self.note("first step")
        self.until("the first checkpoint", lambda: self.status().get("checkpoint"), seconds)

    def goes_on(self, seconds: float) -> int:
        """Wait for steps beyond those that were under way; the step that was known before."""
        step: int = self.status()["step"]
        self.until("training goes on", lambda: self.status()["step"] >= step + _NEW_STEPS, seconds)
        return step

    def uids(self) -> dict[str, str]:
        """Of the pods that are there, by role."""
        found = {role: self.pods(role) for role in ("orchestrator", "trainer", "inference")}
        return {role: one["metadata"]["uid"] for role, pods in found.items() for one in pods.values()}

    def restarts(self, role: str) -> int:
        """Of the only container of a role's only pod, in place."""
        (status,) = self.pod(role)["status"]["containerStatuses"]
        return int(status["restartCount"])

    def told(self) -> str:
        """Status, pods and the ends of their logs, for people."""
        parts = [json.dumps(self.status(), indent=1)]
        for name, pod in sorted(self.pods().items()):
            parts.append(f"--- {name}: {json.dumps(pod['status'].get('containerStatuses', pod['status']))}")
            try:
                parts.append(self.cluster.kubectl("-n", self.namespace, "logs", name, f"--tail={_LOG_LINES}"))
            except ClusterError as error:
                parts.append(f"no log: {error}")
        return "\n".join(parts)
