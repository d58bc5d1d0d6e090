"""Command lines of etcd, the API server, the controller manager, the scheduler and kwok."""

import json
from collections.abc import Sequence
from pathlib import Path

from echorl_testing.cluster import credentials
from echorl_testing.cluster.layout import API_PORT, Layout

FAKE_NODE_ANNOTATION = "kwok.x-k8s.io/node"
"""Nodes that carry it with the value ``fake`` are kwok's."""


def etcd(layout: Layout) -> list[str]:
    """Only for tests: nothing is synced to disk."""
    return [
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]


def kube_apiserver(layout: Layout, extra: Sequence[str] = ()) -> list[str]:
    """``extra`` arguments come last."""
    keys = layout.folder / "credentials"
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={layout.node_address}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={keys / 'apiserver.crt'}",
        f"--tls-private-key-file={keys / 'apiserver.key'}",
        f"--token-auth-file={keys / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        # A pod that asks for a GPU tolerates the taint of GPU nodes without saying so, as on managed services.
        "--enable-admission-plugins=NodeRestriction,ExtendedResourceToleration,OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        f"--service-account-key-file={keys / 'service-account.pub'}",
        f"--service-account-signing-key-file={keys / 'service-account.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={layout.service_network}",
        "--kubelet-preferred-address-types=InternalIP",
        *extra,
    ]


def kube_controller_manager(layout: Layout) -> list[str]:
    """Queries per second are for thousands of pods; each controller is a service account of its own."""
    keys = layout.folder / "credentials"
    return [
        f"--kubeconfig={credentials.component_kubeconfig(layout, credentials.CONTROLLER_MANAGER)}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys / 'service-account.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        # Nobody reads Endpoints, and they change with every pod; DNS and kube-proxy read EndpointSlices.
        "--controllers=*,-endpoints-controller",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
        "--concurrent-statefulset-syncs=20",
        "--concurrent-deployment-syncs=20",
        "--concurrent-replicaset-syncs=20",
        "--concurrent-gc-syncs=40",
    ]


def kube_scheduler(layout: Layout) -> list[str]:
    """Writes its configuration file too."""
    kubeconfig = credentials.component_kubeconfig(layout, credentials.SCHEDULER)
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 2000, "burst": 4000},
        "leaderElection": {"leaderElect": False},
    }
    return [f"--config={_write(layout, 'kube-scheduler.json', config)}", "--secure-port=0"]


def kwok(layout: Layout) -> list[str]:
    """Writes its configuration file too."""
    config = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": False,
            "manageNodesWithAnnotationSelector": f"{FAKE_NODE_ANNOTATION}=fake",
            "cidr": layout.fake_pod_network,
            "nodeIP": layout.node_address,
            "podPlayStageParallelism": 16,
            "nodeLeaseDurationSeconds": 40,
        },
    }
    return [
        f"--kubeconfig={credentials.component_kubeconfig(layout, credentials.KWOK)}",
        f"--config={_write(layout, 'kwok.json', config)}",
    ]


def _write(layout: Layout, name: str, config: object) -> Path:
    path = layout.folder / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config, indent=2))
    return path
