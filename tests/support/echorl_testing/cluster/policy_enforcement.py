"""Holds the real node's pods to NetworkPolicies, for a test that asks for it, by iptables in the cluster's namespace.

No ready-made plug-in is built from Go modules alone. What this one does not do: close a new pod before its address is
known (it follows what there is within a second), end connections that are there, named ports, IPv6.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError
from echorl_testing.kube.policy_rules import CHAIN, pods_of, restore_text

_INTERVAL_S = 0.3
_HOOKS = ("FORWARD", "INPUT")
"""What pods send to each other and to the world; what they send to the node. The node's own calls are not held back."""
_LEAVE = f"""
for hook in {" ".join(_HOOKS)}; do iptables -w -D $hook -j {CHAIN} 2>/dev/null; done
chains=$(iptables -w -S | sed -n 's/^-N \\({CHAIN}.*\\)/\\1/p')
for chain in $chains; do iptables -w -F $chain; done
for chain in $chains; do iptables -w -X $chain; done
"""


class PolicyEnforcement:
    """Rules of all policies that there are, made anew when pods, namespaces or policies have changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._lock, self._made = cluster, threading.Lock(), ""
        self._failure: Exception | None = None

    def settle(self) -> None:
        """Return once the rules are those of what there is now.

        Raises:
            ClusterError: they could not be made, now or before.
        """
        with self._lock:
            if self._failure is not None:
                raise ClusterError(f"network policies are enforced no longer: {self._failure}") from self._failure
            self._make()

    def follow(self, stopping: threading.Event) -> None:
        """Keep them so until told to stop, or until they cannot be made."""
        while not stopping.wait(_INTERVAL_S):
            try:
                with self._lock:
                    self._make()
            except Exception as error:
                self._failure = error
                return

    def _make(self) -> None:
        api = self._cluster.api
        pods = [
            one for one in api.get("/api/v1/pods")["items"] if one["spec"].get("nodeName") == self._cluster.node.name
        ]
        namespaces = {
            one["metadata"]["name"]: one["metadata"]["labels"] for one in api.get("/api/v1/namespaces")["items"]
        }
        policies = api.get("/apis/networking.k8s.io/v1/networkpolicies")["items"]
        text = restore_text(policies, pods_of(pods), namespaces)
        if text != self._made:
            self._cluster.sandbox.run("iptables-restore", "--wait", "--noflush", stdin=text.encode())
            self._made = text


@contextmanager
def enforced_policies(cluster: Cluster) -> Iterator[PolicyEnforcement]:
    """While it lasts; nothing of it is left. The real node must run.

    Raises:
        ClusterError: rules could not be made, or not be removed.
    """
    made, stopping = PolicyEnforcement(cluster), threading.Event()
    follower = threading.Thread(target=made.follow, args=(stopping,), name="network policies")
    try:
        made.settle()
        for hook in _HOOKS:
            # Before kube-proxy's, which accept what they know.
            cluster.sandbox.run("iptables", "-w", "-I", hook, "1", "-j", CHAIN)
        follower.start()
        yield made
        made.settle()
    finally:
        stopping.set()
        if follower.is_alive():
            follower.join()
        cluster.sandbox.run("sh", "-c", _LEAVE)
