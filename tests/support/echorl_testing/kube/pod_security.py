"""The ``restricted`` Pod Security Standard as a function over pods, written from the standard's text.

It knows nothing of how our pods are built, so that a mistake there is not made here a second time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUME_KINDS = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
_SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(spec: Mapping[str, Any]) -> list[str]:
    """What in a pod's spec ``restricted`` does not admit; empty if it admits all."""
    pod = spec.get("securityContext", {})
    found = [f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    found += [f"volume {one['name']} of another kind" for one in spec.get("volumes", []) if not _is_core(one)]
    found += [f"sysctl {one['name']}" for one in pod.get("sysctls", []) if one["name"] not in _SAFE_SYSCTLS]
    found += _shared(pod, "pod")
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        found += [f"{container['name']}: {problem}" for problem in _container(container, pod)]
    return found


def _is_core(volume: Mapping[str, Any]) -> bool:
    return (volume.keys() - {"name"}) <= _VOLUME_KINDS


def _container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    yield from _shared(own, "container")
    if own.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may escalate privileges"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "may run as root"
    seccomp = own.get("seccompProfile", pod.get("seccompProfile", {}))
    if seccomp.get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "has no seccomp profile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "keeps capabilities"
    yield from (f"adds {name}" for name in capabilities.get("add", []) if name != "NET_BIND_SERVICE")
    if own.get("procMount", "Default") != "Default":
        yield "has another proc mount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "takes a port of its node"
    yield from _hosts(container)


def _shared(context: Mapping[str, Any], where: str) -> list[str]:
    found = []
    if context.get("runAsUser") == 0:
        found.append(f"{where} runs as user 0")
    if context.get("runAsNonRoot") is False:
        found.append(f"{where} may run as root")
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in {"RuntimeDefault", "Localhost"}:
        found.append(f"{where} has a foreign seccomp profile")
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in {"RuntimeDefault", "Localhost"}:
        found.append(f"{where} has a foreign AppArmor profile")
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        found.append(f"{where} has foreign SELinux options")
    if context.get("windowsOptions", {}).get("hostProcess"):
        found.append(f"{where} is a host process")
    return found


def _hosts(container: Mapping[str, Any]) -> Iterator[str]:
    lifecycle = container.get("lifecycle", {})
    handlers = [container.get(name, {}) for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    for handler in (*handlers, *lifecycle.values()):
        if handler.get("httpGet", {}).get("host") or handler.get("tcpSocket", {}).get("host"):
            yield "asks another host"
