"""Configuration files of a real node: containerd, CNI, kubelet, kube-proxy, CoreDNS. Pure."""

from typing import Any

from echorl_testing.cluster import credentials
from echorl_testing.cluster.images import PAUSE
from echorl_testing.cluster.layout import CLUSTER_DOMAIN, Layout

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DNS_READY_PORT = 8181

KERNEL_TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""What the kubelet would set for the whole machine (its container_manager_linux.go); it is shown these values."""

_CRI = 'plugins."io.containerd.grpc.v1.cri"'


def containerd(layout: Layout, *, cni_folder: str) -> str:
    """Text of config.toml, in the second version of its format (containerd 1.6 and later read it)."""
    return f"""\
version = 2
root = "{layout.folder}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[{_CRI}]
sandbox_image = "{PAUSE}"
# Without CAP_SYS_RESOURCE containers could not be given the scores that the kubelet asks for.
restrict_oom_score_adj = true
# Loading a profile would change the machine's kernel.
disable_apparmor = true

[{_CRI}.cni]
bin_dir = "{cni_folder}"
conf_dir = "{layout.folder}/cni"

[{_CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{_CRI}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def cni(layout: Layout) -> dict[str, Any]:
    """A bridge with addresses from the node's range."""
    return {
        "cniVersion": "0.4.0",
        "name": "echorl",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": layout.real_pod_network}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet(layout: Layout) -> dict[str, Any]:
    """Everything that it writes is below the cluster's folder; nothing is evicted but for a limit of its own."""
    never = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": dict.fromkeys((*never, "pid.available"), "0%"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [layout.dns_service_address],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": f"{layout.folder}/config/resolv.conf",
        "podLogsDir": f"{layout.folder}/pod-logs",
        "volumePluginDir": f"{layout.folder}/volume-plugins",
        "staticPodPath": "",
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "2s",
    }


def kube_proxy(layout: Layout) -> dict[str, Any]:
    """Settings of connection tracking belong to the whole machine and are left alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": layout.pod_network,
        "hostnameOverride": layout.name,
        "clientConnection": {"kubeconfig": str(credentials.component_kubeconfig(layout, credentials.PROXY))},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def corefile(layout: Layout) -> str:
    """The cluster's own names, and no others: nothing asks the world outside."""
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {layout.node_address}
    errors
    ready 127.0.0.1:{DNS_READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {credentials.component_kubeconfig(layout, credentials.DNS)}
        ttl 1
    }}
}}
.:53 {{
    bind {layout.node_address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def dns_objects(layout: Layout) -> dict[str, dict[str, Any]]:
    """Service and endpoints of the DNS server, by path of their collection."""
    ports = [
        {"name": name, "port": 53, "protocol": protocol} for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    meta = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    return {
        "/api/v1/namespaces/kube-system/services": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"clusterIP": layout.dns_service_address, "ports": ports},
        },
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [layout.node_address], "conditions": {"ready": True}}],
        },
    }
