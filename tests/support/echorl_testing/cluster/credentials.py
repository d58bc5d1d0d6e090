"""Who may talk to a cluster: users with tokens, and the files with which clients find it."""

import base64
import csv
import io
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.layout import CLUSTER_DOMAIN, Layout
from echorl_testing.cluster.sandbox import run

ADMIN = "admin"
SCHEDULER = "system:kube-scheduler"
CONTROLLER_MANAGER = "system:kube-controller-manager"
PROXY = "system:kube-proxy"
KWOK = "kwok"
DNS = "coredns"

PEOPLE: Mapping[str, Sequence[str]] = {
    "alice": ("team-a",),
    "bob": ("team-b",),
    "carol": ("team-a", "team-b"),
    "mallory": (),
}
"""Users without any right of their own, with their groups: tests bind roles to them."""


def node_user(node: str) -> str:
    """The user that a node's kubelet is."""
    return f"system:node:{node}"


def _users(node: str) -> dict[str, Sequence[str]]:
    return {
        ADMIN: ("system:masters",),
        SCHEDULER: (),
        CONTROLLER_MANAGER: (),
        PROXY: (),
        node_user(node): ("system:nodes",),
        KWOK: ("system:masters",),
        DNS: ("system:masters",),
        **PEOPLE,
    }


@dataclass(frozen=True)
class Connection:
    """How to reach a cluster from this machine, and as whom."""

    server: str
    """URL of the API server."""
    ca_file: Path
    """Certificate of the authority that signed the API server's."""
    kubeconfig: Path
    """Of the admin, who may do everything; certificate and token are inside. Mode 0600."""
    user_tokens: Mapping[str, str] = field(repr=False)
    """Bearer token by user: ``admin``, and everyone in :data:`PEOPLE`."""

    @property
    def admin_token(self) -> str:
        """Of the user in ``system:masters``, who may also impersonate anyone."""
        return self.user_tokens[ADMIN]

    def write_kubeconfig(self, path: Path, *, token: str, namespace: str = "default") -> Path:
        """Write a kubeconfig for the bearer of a token, readable by its owner only; returns ``path``."""
        config = kubeconfig(self.server, self.ca_file.read_bytes(), token, name=path.stem, namespace=namespace)
        return write_secret(path, json.dumps(config, indent=2) + "\n")


def create(layout: Layout, binaries: Binaries, *, node: str) -> Connection:
    """Make keys, certificates, users and their kubeconfigs in the cluster's folder."""
    folder = layout.folder / "credentials"
    folder.mkdir(mode=0o700)
    names = [
        layout.node_address,
        layout.api_service_address,
        "127.0.0.1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
    ]
    run([str(binaries.path("credentials")), str(folder), *names])
    tokens = {user: secrets.token_urlsafe(24) for user in _users(node)}
    write_secret(folder / "tokens.json", json.dumps(tokens))
    rows = io.StringIO()
    writer = csv.writer(rows)
    for user, groups in _users(node).items():
        writer.writerow([tokens[user], user, f"uid-{user}", ",".join(groups)])
    write_secret(folder / "tokens.csv", rows.getvalue())
    connection = load(layout)
    for user, token in tokens.items():
        connection.write_kubeconfig(component_kubeconfig(layout, user), token=token)
    return connection


def load(layout: Layout) -> Connection:
    """The connection to a cluster whose credentials were made."""
    folder = layout.folder / "credentials"
    tokens = json.loads((folder / "tokens.json").read_text())
    people = {user: tokens[user] for user in (ADMIN, *PEOPLE)}
    return Connection(layout.server, folder / "ca.crt", component_kubeconfig(layout, ADMIN), people)


def component_kubeconfig(layout: Layout, user: str) -> Path:
    """Where a user's kubeconfig is."""
    return layout.folder / "credentials" / f"{user.replace(':', '-')}.kubeconfig"


def kubeconfig(server: str, ca: bytes, token: str, *, name: str, namespace: str = "default") -> dict[str, Any]:
    """A kubeconfig that needs no other file."""
    authority = base64.b64encode(ca).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }


def write_secret(path: Path, text: str) -> Path:
    """Write a file that only its owner can read; never readable by others, not even for a moment."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text)
    return path
