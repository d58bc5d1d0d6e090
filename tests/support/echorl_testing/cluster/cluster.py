"""A running cluster: started, found again, changed and ended."""

import functools
import json
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echorl_testing.cluster import (
    control_plane,
    credentials,
    instances,
    network,
    nodes,
    packages,
    processes,
    sandbox,
)
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.layout import NUMBERS, Layout
from echorl_testing.cluster.processes import Component, ProcessId
from echorl_testing.cluster.real_node import RealNode
from echorl_testing.cluster.sandbox import Sandbox

_READY_DEADLINE_S = 180.0
_NODES_DEADLINE_S = 120.0

_ARGUMENTS: dict[str, Callable[[Layout], list[str]]] = {
    "etcd": control_plane.etcd,
    "kube-apiserver": control_plane.kube_apiserver,
    "kube-controller-manager": control_plane.kube_controller_manager,
    "kube-scheduler": control_plane.kube_scheduler,
    "kwok": control_plane.kwok,
}


@dataclass
class Cluster:
    """One cluster. Not for use by several threads at once."""

    layout: Layout
    sandbox: Sandbox
    connection: Connection
    binaries: Binaries
    apiserver_arguments: Sequence[str] = ()
    kwok_arguments: Sequence[str] = ()
    node: RealNode = field(init=False)

    def __post_init__(self) -> None:
        self.node = RealNode(self.layout, self.sandbox, self.binaries, self.api)

    @functools.cached_property
    def api(self) -> Api:
        """Requests as the admin."""
        return Api(self.connection)

    @property
    def components(self) -> dict[str, Component]:
        """Processes of the control plane that were started, alive or not."""
        found = {}
        for name in _ARGUMENTS:
            process = ProcessId.from_file(self._note(name))
            if process is not None:
                found[name] = Component(name, process, self.layout.logs / f"{name}.log")
        return found

    def ensure_control_plane(self) -> None:
        """Start every component that does not run; return when the cluster accepts pods.

        Raises:
            ClusterError: it does not; with the ends of the logs.
        """
        self._ensure("etcd")
        server = self._ensure("kube-apiserver")
        processes.wait_for(
            f"API server at {self.layout.server}",
            self.api.healthy,
            seconds=_READY_DEADLINE_S,
            components=[self.components["etcd"], server],
        )
        others = [self._ensure(name) for name in ("kube-controller-manager", "kube-scheduler", "kwok")]
        # Without its default service account a namespace refuses pods.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        processes.wait_for(
            "service account of the default namespace",
            lambda: self.api.find(account) is not None,
            seconds=_READY_DEADLINE_S,
            components=others,
        )

    def stop_component(self, name: str, *, number: signal.Signals = signal.SIGKILL) -> None:
        """End a component of the control plane, by default without warning; returns when it is gone.

        ``start_component`` brings it back. ``SIGSTOP`` and ``SIGCONT`` freeze and thaw it instead.
        """
        process = self._component(name).process
        # nsenter stops itself with what it runs; it must go on with it, or it would outlive the cluster.
        entry = processes.entry_of(process)
        process.signal(number)
        if number is signal.SIGSTOP:
            processes.wait_for(f"{name} is frozen", lambda: _frozen(process, entry), seconds=_READY_DEADLINE_S)
            return
        if entry is not None:
            entry.signal(signal.SIGCONT)
        if number is not signal.SIGCONT:
            processes.wait_for(f"end of {name}", lambda: not process.alive, seconds=_READY_DEADLINE_S)

    def start_component(self, name: str) -> Component:
        """Start a component of the control plane if it does not run; does not wait until it works."""
        return self._ensure(name)

    def add_fake_nodes(self, *, gpu: int = 0, cpu: int = 0, gpus: int = 8, prefix: str = "fake") -> list[str]:
        """Add nodes that do not exist yet and return all their names, ``<prefix>-gpu-<i>`` and ``<prefix>-cpu-<i>``.

        Pods on them become ready at once and never end by themselves. ``gpus``: per GPU node.

        Raises:
            ClusterError: they do not become ready.
        """
        wanted = [nodes.gpu_node(f"{prefix}-gpu-{index}", gpus=gpus) for index in range(gpu)]
        wanted += [nodes.cpu_node(f"{prefix}-cpu-{index}") for index in range(cpu)]
        names = [node["metadata"]["name"] for node in wanted]
        present = {node["metadata"]["name"] for node in self.api.get("/api/v1/nodes")["items"]}
        for node in wanted:
            if node["metadata"]["name"] not in present:
                self.api.create("/api/v1/nodes", node)
        processes.wait_for(
            f"nodes {names}",
            lambda: self._ready(names),
            seconds=_NODES_DEADLINE_S,
            components=[self._component("kwok")],
        )
        return names

    def remove_nodes(self, names: Iterable[str]) -> None:
        """Remove nodes, and at once the pods that were bound to them."""
        nodes.remove(self.api, names)

    def fake_node_names(self) -> list[str]:
        """All fake nodes."""
        found = self.api.get("/api/v1/nodes", labelSelector=nodes.FAKE_LABEL)["items"]
        return [node["metadata"]["name"] for node in found]

    def service_account_token(self, namespace: str, name: str, *, seconds: int = 3600) -> str:
        """A token of a service account, as a pod would get it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        reply = self.api.create(path, {**request, "spec": {"expirationSeconds": seconds}})
        return str(reply["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """Run kubectl on this machine as the admin and return its output.

        Raises:
            ClusterError: it failed; with what it said.
        """
        options = [f"--kubeconfig={self.connection.kubeconfig}", f"--cache-dir={self.layout.folder / 'kubectl'}"]
        command = [str(self.binaries.path("kubectl")), *options, *arguments]
        return sandbox.run(command, stdin=None if stdin is None else stdin.encode(), timeout_s=timeout_s)

    def stop(self) -> None:
        """End the cluster. Returns when nothing of it is left on the machine."""
        for name, component in self.components.items():
            if processes.is_stopped(component.process):
                self.stop_component(name, number=signal.SIGCONT)
        instances.release(self.layout)

    def _ready(self, names: Sequence[str]) -> bool:
        found = {node["metadata"]["name"]: node for node in self.api.get("/api/v1/nodes")["items"]}
        return all(name in found and nodes.is_ready(found[name]) for name in names)

    def _component(self, name: str) -> Component:
        found = self.components.get(name)
        if found is None:
            raise KeyError(f"no component {name!r} was started; there are: {', '.join(self.components)}")
        return found

    def _ensure(self, name: str) -> Component:
        found = self.components.get(name)
        if found is not None and found.process.alive:
            return found
        arguments = _ARGUMENTS[name](self.layout)
        arguments += {"kube-apiserver": self.apiserver_arguments, "kwok": self.kwok_arguments}.get(name, ())
        log = self.layout.logs / f"{name}.log"
        component = self.sandbox.spawn(name, [self.binaries.path(name), *arguments], log)
        self._note(name).write_text(component.process.to_json())
        return component

    def _note(self, name: str) -> Path:
        return self.layout.folder / f"{name}.json"


def _frozen(process: ProcessId, entry: ProcessId | None) -> bool:
    """Whether a process, and what started it, are frozen. An nsenter that just went on thaws its child once more."""
    if process.alive and not processes.is_stopped(process):
        process.signal(signal.SIGSTOP)
    return all(processes.is_stopped(one) or not one.alive for one in (process, entry) if one is not None)


def start(
    *,
    tethered: bool,
    numbers: Sequence[int] = NUMBERS,
    binaries: Binaries | None = None,
    apiserver_arguments: Sequence[str] = (),
    kwok_arguments: Sequence[str] = (),
) -> Cluster:
    """Start a control plane under the first free number; the real node is :attr:`Cluster.node`'s to start.

    ``tethered``: the cluster ends with this process, even if that is killed; else it lives until :meth:`Cluster.stop`.
    The last two come after the arguments that these programs get anyway.

    Raises:
        Unavailable: this machine cannot hold one.
        ClusterError: it did not start. Nothing is left of it.
    """
    sandbox.check_possible()
    packages.ensure_control_plane()
    programs = Binaries() if binaries is None else binaries
    for program in _ARGUMENTS:
        programs.path(program)
    layout = instances.claim(numbers)
    try:
        box = sandbox.create(layout.name, tethered=tethered)
        instances.note_sandbox(layout, box)
        network.connect(layout, box)
        connection = credentials.create(layout, programs, node=layout.name)
        cluster = Cluster(layout, box, connection, programs, apiserver_arguments, kwok_arguments)
        cluster.ensure_control_plane()
        if not tethered:
            instances.hand_over(layout, box.init)
    except BaseException:
        instances.release(layout)
        raise
    return cluster


def find(number: int, *, binaries: Binaries | None = None) -> Cluster | None:
    """The cluster with this number, if it lives."""
    layout = Layout(number)
    box = instances.find_sandbox(layout)
    if not instances.owned(layout) or box is None or not box.alive:
        return None
    try:
        connection = credentials.load(layout)
    except (OSError, json.JSONDecodeError) as error:
        raise ClusterError(f"cluster {number} has no usable credentials: {error}") from error
    return Cluster(layout, box, connection, binaries or Binaries())
