"""The real node of a cluster: containerd, kubelet, kube-proxy, cluster DNS, in namespaces that can be ended alone."""

import json
from dataclasses import dataclass
from pathlib import Path

from echorl_testing.cluster import cgroups, credentials, images, node_config, nodes, packages, processes
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.images import Image
from echorl_testing.cluster.layout import Layout
from echorl_testing.cluster.processes import Component
from echorl_testing.cluster.sandbox import Sandbox

_READY_DEADLINE_S = 240.0
_IMPORT_TIMEOUT_S = 900.0
"""Images with torch are several GiB."""
_NAMES = ("containerd", "kubelet", "kube-proxy", "coredns")

_MOUNTS = """
set -e
# What containerd, CNI plugins and the kubelet write to fixed places stays in memory and goes with the namespace.
mkdir -p {folder}/here
mount --bind {folder} {folder}/here
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir /run/cluster
mount --move {folder}/here /run/cluster
mount -t tmpfs tmpfs /var/lib
mkdir -p {folder}
mount --move /run/cluster {folder}
"""
_TUNABLE = """
if [ -e /proc/sys/{name} ]; then
  mkdir -p "$(dirname {folder}/tunables/{name})"
  echo {value} > {folder}/tunables/{name}
  mount --bind {folder}/tunables/{name} /proc/sys/{name}
fi
"""


@dataclass
class RealNode:
    """Runs pods in containers. Their images come from :meth:`import_image`; there is no registry."""

    layout: Layout
    outer: Sandbox
    binaries: Binaries
    api: Api

    @property
    def name(self) -> str:
        """Of the Node object."""
        return self.layout.name

    @property
    def sandbox(self) -> Sandbox | None:
        """Its namespaces, while it runs."""
        found = Sandbox.find(self._folder)
        return found if found is not None and found.alive else None

    @property
    def components(self) -> dict[str, Component]:
        """Its processes that were started, alive or not."""
        found = {}
        for name in _NAMES:
            process = processes.ProcessId.from_file(self._folder / f"{name}.json")
            if process is not None:
                found[name] = Component(name, process, self.layout.logs / f"{name}.log")
        return found

    def ensure(self) -> None:
        """Start what does not run; return when the node is ready, its own images are there and DNS answers.

        Raises:
            Unavailable: a program of the operating system is missing and cannot be installed.
            ClusterError: it does not become ready; with the ends of the logs.
        """
        packages.ensure_node()
        self._configure()
        sandbox = self.sandbox
        if sandbox is None:
            sandbox = self._create()
        containerd = self._ensure_containerd(sandbox)
        config = self.layout.folder / "config"
        kubelet = self._ensure(
            sandbox,
            "kubelet",
            self.binaries.path("kubelet"),
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={credentials.component_kubeconfig(self.layout, credentials.node_user(self.name))}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.layout.node_address}",
            f"--root-dir={self.layout.folder / 'kubelet'}",
            f"--cert-dir={self.layout.folder / 'kubelet' / 'pki'}",
        )
        proxy = self._ensure(
            sandbox, "kube-proxy", self.binaries.path("kube-proxy"), f"--config={config / 'kube-proxy.json'}"
        )
        self._ensure_dns(sandbox)
        node = f"/api/v1/nodes/{self.name}"
        processes.wait_for(
            f"node {self.name}",
            lambda: nodes.is_ready(self.api.find(node) or {}),
            seconds=_READY_DEADLINE_S,
            components=[kubelet, containerd, proxy],
        )

    def import_image(self, image: Image | Path) -> None:
        """Make an image known to the node, from its description or from an archive of ``docker save``.

        Raises:
            ClusterError: the node does not run, or containerd refuses the archive.
        """
        self.ctr("images", "import", "-", stdin=images.archive(image) if isinstance(image, Image) else image)

    def ctr(self, *arguments: str, stdin: bytes | Path | None = None) -> str:
        """What ``ctr`` prints, with the images and containers of pods.

        Raises:
            ClusterError: the node does not run, or the command failed.
        """
        sandbox = self.sandbox
        if sandbox is None:
            raise ClusterError(f"{self.name} does not run")
        return self._ctr(sandbox, *arguments, stdin=stdin)

    def kill_container(self, container: str) -> None:
        """End every process of a container at once, as the kernel does when memory runs out.

        ``container``: as a pod's status has it, ``containerd://ID``.

        Raises:
            ClusterError: the node does not run, or there is no such container.
        """
        self.ctr("tasks", "kill", "--signal", "SIGKILL", container.removeprefix("containerd://"))

    def stop(self) -> None:
        """End the node with all its pods, at once, and remove it from the cluster."""
        found = Sandbox.find(self._folder)
        if found is not None:
            found.end()
        for name in (*_NAMES, "holder", "init"):
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        cgroups.remove(self.layout.name)
        self.outer.run("sh", "-c", "ip link delete cni0 2>/dev/null || true")
        nodes.remove(self.api, [self.name])

    @property
    def _folder(self) -> Path:
        return self.layout.folder / "node"

    def _configure(self) -> None:
        cni_folder = packages.cni_folder()
        config, cni = self.layout.folder / "config", self.layout.folder / "cni"
        for folder in (config, cni, self._folder):
            folder.mkdir(exist_ok=True)
        (config / "containerd.toml").write_text(node_config.containerd(self.layout, cni_folder=str(cni_folder)))
        (config / "kubelet.json").write_text(json.dumps(node_config.kubelet(self.layout), indent=2))
        (config / "kube-proxy.json").write_text(json.dumps(node_config.kube_proxy(self.layout), indent=2))
        (config / "Corefile").write_text(node_config.corefile(self.layout))
        (config / "resolv.conf").write_text("")
        (cni / "10-echorl.conflist").write_text(json.dumps(node_config.cni(self.layout), indent=2))

    def _create(self) -> Sandbox:
        cgroups.create(self.layout.name)
        sandbox = self.outer.nested()
        folder = self.layout.folder
        script = _MOUNTS.format(folder=folder) + "".join(
            _TUNABLE.format(folder=folder, name=name, value=value)
            for name, value in node_config.KERNEL_TUNABLES.items()
        )
        sandbox.run("sh", "-c", script)
        sandbox.run("mount", "--make-rshared", "/")  # pods may ask for mounts that spread
        sandbox.note(self._folder)
        return sandbox

    def _ensure_containerd(self, sandbox: Sandbox) -> Component:
        program = packages.find("containerd")
        config = self.layout.folder / "config" / "containerd.toml"
        containerd = self._ensure(sandbox, "containerd", program, f"--config={config}")
        processes.wait_for(
            "containerd", lambda: self._answers(sandbox), seconds=_READY_DEADLINE_S, components=[containerd]
        )
        known = self._ctr(sandbox, "images", "list", "-q").split()
        if images.PAUSE not in known:
            self.import_image(images.pause(self.binaries.path("pause")))
        if images.BUSYBOX not in known:
            busybox = packages.find("busybox")
            self.import_image(images.busybox(busybox, sandbox.run(busybox, "--list").split()))
        return containerd

    def _ensure_dns(self, sandbox: Sandbox) -> None:
        for collection, body in node_config.dns_objects(self.layout).items():
            self.api.apply(f"{collection}/{body['metadata']['name']}", body)
        corefile = self.layout.folder / "config" / "Corefile"
        coredns = self._ensure(sandbox, "coredns", self.binaries.path("coredns"), "-conf", corefile)
        ready = f"http://127.0.0.1:{node_config.DNS_READY_PORT}/ready"
        processes.wait_for(
            "cluster DNS",
            lambda: _succeeds(sandbox, str(packages.find("busybox")), "wget", "-q", "-O", "-", ready),
            seconds=_READY_DEADLINE_S,
            components=[coredns],
        )

    def _ensure(self, sandbox: Sandbox, name: str, *command: str | Path) -> Component:
        found = self.components.get(name)
        if found is not None and found.process.alive:
            return found
        component = sandbox.spawn(name, command, self.layout.logs / f"{name}.log")
        (self._folder / f"{name}.json").write_text(component.process.to_json())
        return component

    def _answers(self, sandbox: Sandbox) -> bool:
        try:
            self._ctr(sandbox, "version")
        except ClusterError:
            return False
        return True

    def _ctr(self, sandbox: Sandbox, *arguments: str, stdin: bytes | Path | None = None) -> str:
        ctr = [str(packages.find("ctr")), f"--address={node_config.CONTAINERD_SOCKET}", "--namespace=k8s.io"]
        return sandbox.run(*ctr, *arguments, stdin=stdin, timeout_s=_IMPORT_TIMEOUT_S)


def _succeeds(sandbox: Sandbox, *command: str) -> bool:
    try:
        sandbox.run(*command)
    except ClusterError:
        return False
    return True
