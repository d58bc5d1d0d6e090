"""The link between this machine and a cluster's network namespace, and the routes on both ends."""

import ipaddress
import json
import time
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.layout import Layout
from echorl_testing.cluster.sandbox import Sandbox, run

_INSIDE = """
set -e
ip link set lo up
ip address add {node}/24 dev eth0
ip link set eth0 up
# Services have no route of their own; kube-proxy rewrites them after the first routing decision.
ip route add {services} dev eth0
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


def connect(layout: Layout, sandbox: Sandbox) -> None:
    """Make the link, with routes from this machine to the cluster's pods and services. Nothing leads further out."""
    run(["ip", "link", "add", layout.veth, "type", "veth", "peer", "name", "eth0", "netns", str(sandbox.init.pid)])
    run(["ip", "address", "add", f"{layout.host_address}/24", "dev", layout.veth])
    run(["ip", "link", "set", layout.veth, "up"])
    sandbox.run("sh", "-c", _INSIDE.format(node=layout.node_address, services=layout.service_network))
    for network in (layout.pod_network, layout.service_network):
        run(["ip", "route", "add", network, "via", layout.node_address])


def disconnect(layout: Layout, *, seconds: float = 10.0) -> None:
    """Return when the link is gone. The kernel removes it some time after the namespace.

    Raises:
        ClusterError: it is still there after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    asked = False
    while link_exists(layout):
        if time.monotonic() > deadline:
            raise ClusterError(f"network device {layout.veth} is still there after {seconds:g} s")
        if not asked and time.monotonic() > deadline - seconds / 2:
            asked = True
            _delete(layout)
        time.sleep(0.01)


def link_exists(layout: Layout) -> bool:
    """Whether this machine has the link's device."""
    return Path("/sys/class/net", layout.veth).exists()


def foreign_routes(layout: Layout) -> list[str]:
    """Routes of this machine, beside the default one, that the cluster's addresses would collide with."""
    wanted = [
        ipaddress.ip_network(network) for network in (layout.node_network, layout.pod_network, layout.service_network)
    ]
    routes = json.loads(run(["ip", "-json", "-4", "route", "show"]) or "[]")
    taken = []
    for route in routes:
        if route["dst"] != "default" and route.get("dev") != layout.veth:
            network = ipaddress.ip_network(route["dst"], strict=False)
            if any(network.overlaps(other) for other in wanted):
                taken.append(f"{route['dst']} dev {route.get('dev', '-')}")
    return taken


def _delete(layout: Layout) -> None:
    try:
        run(["ip", "link", "delete", layout.veth])
    except ClusterError:
        if link_exists(layout):
            raise
