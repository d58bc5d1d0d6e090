"""Names, addresses and folders of one cluster, all derived from its number. Pure."""

from dataclasses import dataclass
from pathlib import Path

BASE = Path("/var/lib/echorl-cluster")
"""Everything that clusters write on the machine, beside the cache of binaries. Gone when the last one is gone."""
NUMBERS = range(64)
"""Clusters that one machine can hold at once."""

API_PORT = 6443
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Layout:
    """Where cluster ``number`` lives. Two clusters share no name, address or path."""

    number: int

    def __post_init__(self) -> None:
        if self.number not in NUMBERS:
            raise ValueError(f"number of a cluster: found {self.number}, accepted 0 to {NUMBERS[-1]}")

    @property
    def name(self) -> str:
        """Of its host name, its cgroup and its contexts in kubeconfig files."""
        return f"echorl-{self.number}"

    @property
    def folder(self) -> Path:
        """Logs, credentials, databases; readable by root only."""
        return BASE / str(self.number)

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.folder / "logs"

    @property
    def veth(self) -> str:
        """The host's end of the link into the cluster's network namespace."""
        return f"echorl{self.number}"

    @property
    def node_network(self) -> str:
        """Of the link. From the range for benchmarks between networks, which no network routes."""
        return f"198.18.{self.number}.0/24"

    @property
    def node_address(self) -> str:
        """Of the API server and the real node."""
        return f"198.18.{self.number}.1"

    @property
    def host_address(self) -> str:
        """Under which the cluster sees this machine."""
        return f"198.18.{self.number}.2"

    @property
    def pod_network(self) -> str:
        """Addresses of all pods. Routed from this machine into the cluster."""
        return f"10.{128 + self.number}.0.0/16"

    @property
    def real_pod_network(self) -> str:
        """Addresses of pods that run on the real node."""
        return f"10.{128 + self.number}.0.0/24"

    @property
    def fake_pod_network(self) -> str:
        """Addresses that kwok gives to pods on fake nodes."""
        return f"10.{128 + self.number}.128.1/17"

    @property
    def service_network(self) -> str:
        """Addresses of services. Routed from this machine into the cluster; answered while the real node runs."""
        return f"10.{192 + self.number}.0.0/16"

    @property
    def api_service_address(self) -> str:
        """Of the service ``kubernetes``."""
        return f"10.{192 + self.number}.0.1"

    @property
    def dns_service_address(self) -> str:
        """Of the service ``kube-dns``."""
        return f"10.{192 + self.number}.0.10"

    @property
    def server(self) -> str:
        """URL of the API server, reachable from this machine and from inside."""
        return f"https://{self.node_address}:{API_PORT}"
