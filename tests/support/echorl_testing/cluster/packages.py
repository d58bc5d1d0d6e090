"""Programs that a cluster takes from the operating system."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.cluster.sandbox import run

_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_INSTALL_TIMEOUT_S = 300.0

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))

CONTROL_PLANE = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "setpriv": "util-linux"}
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "busybox": "busybox-static",
    "mount": "mount",
}
SANDBOXES = {"bwrap": "bubblewrap"}
"""Debian package by program."""


def ensure_control_plane() -> None:
    """Install what the control plane needs where it is missing.

    Raises:
        Unavailable: it is missing and this machine has no apt-get.
        ClusterError: the installation failed.
    """
    _install(_missing(CONTROL_PLANE))


def ensure_sandboxes() -> None:
    """Install what sandboxes on this machine need where it is missing; raises like :func:`ensure_control_plane`."""
    _install(_missing(SANDBOXES))


def ensure_node() -> None:
    """Install what the real node needs where it is missing; raises like :func:`ensure_control_plane`."""
    missing = _missing(NODE)
    if cni_folder() is None:
        missing.add("containernetworking-plugins")
    _install(missing)


def ensure_prometheus() -> None:
    """Install Prometheus and promtool where they are missing; raises like :func:`ensure_control_plane`."""
    _install(_missing({"prometheus": "prometheus", "promtool": "prometheus"}))


def ensure_browser() -> None:
    """Install Chromium and its driver where they are missing; raises like :func:`ensure_control_plane`."""
    _install(_missing({"chromium": "chromium", "chromedriver": "chromium-driver"}))


def cni_folder() -> Path | None:
    """Where the CNI plugins are."""
    return next((folder for folder in CNI_FOLDERS if (folder / "bridge").exists()), None)


def find(program: str) -> Path:
    """A program of the operating system.

    Raises:
        ClusterError: it is not there.
    """
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))
    if path is None:
        raise ClusterError(f"{program} is not installed")
    return Path(path)


def _missing(programs: dict[str, str]) -> set[str]:
    search = os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS])
    return {package for program, package in programs.items() if shutil.which(program, path=search) is None}


def _install(packages: Iterable[str]) -> None:
    names = sorted(packages)
    if not names:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"a test cluster needs programs that are missing, and no apt-get: {', '.join(names)}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *names]
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", *install]
    try:
        run(quiet, timeout_s=_INSTALL_TIMEOUT_S)
    except ClusterError:  # the lists of packages may be missing or old
        run(["apt-get", "update", "-qq"], timeout_s=_INSTALL_TIMEOUT_S)
        run(quiet, timeout_s=_INSTALL_TIMEOUT_S)
