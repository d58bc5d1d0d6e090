"""Security contexts that a template may ask for: those that stay within the ``restricted`` Pod Security Standard.

One exception, for RDMA: the capability IPC_LOCK. A pod with it needs a namespace that enforces less.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.schema import found_text

CAPABILITIES = frozenset({"NET_BIND_SERVICE", "IPC_LOCK"})
PROFILES = ("RuntimeDefault", "Localhost")
PROFILE_FIELDS = ("seccompProfile", "appArmorProfile")
SHARED_FIELDS: Mapping[str, object] = {"runAsNonRoot": True}
"""Fields that have one accepted value: in contexts of pods and containers."""
CONTAINER_FIELDS: Mapping[str, object] = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "procMount": "Default",
}
"""The same in those of containers."""
USER_ACCEPTED = "a user id from 1"
_SELINUX_TYPES = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = frozenset(
    {
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
)
"""Safe ones of the ``baseline`` standard."""
REASON = "it leaves the restricted Pod Security Standard"


def pod_context_problems(context: Any, path: str) -> Iterator[Problem]:
    """What is refused in a pod's security context."""
    if context is None:
        return
    if not isinstance(context, Mapping):
        yield Problem(path, found_text(context), "a pod security context")
        return
    yield from _shared(context, path)
    sysctls = context.get("sysctls")
    for index, sysctl in enumerate(sysctls if isinstance(sysctls, list) else ()):
        name = sysctl.get("name") if isinstance(sysctl, Mapping) else sysctl
        if not isinstance(name, str) or name not in _SYSCTLS:
            accepted = f"one of {', '.join(sorted(_SYSCTLS))}"
            yield Problem(f"{path}.sysctls[{index}].name", found_text(name), accepted, REASON)


def container_context_problems(context: Any, path: str) -> Iterator[Problem]:
    """What is refused in a container's security context."""
    if context is None:
        return
    if not isinstance(context, Mapping):
        yield Problem(path, found_text(context), "a container security context")
        return
    yield from _shared(context, path)
    for field, accepted in CONTAINER_FIELDS.items():
        yield from _only(context, field, (accepted,), path)
    yield from _capabilities(context.get("capabilities"), f"{path}.capabilities")


def _shared(context: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for field, accepted in SHARED_FIELDS.items():
        yield from _only(context, field, (accepted,), path)
    user = context.get("runAsUser")
    if user is not None and (not isinstance(user, int) or isinstance(user, bool) or user < 1):
        yield Problem(f"{path}.runAsUser", found_text(user), USER_ACCEPTED, REASON)
    for profile in PROFILE_FIELDS:
        if (asked := context.get(profile)) is not None:
            inner = asked if isinstance(asked, Mapping) else {"type": asked}
            yield from _only(inner, "type", PROFILES, f"{path}.{profile}")
    options = context.get("seLinuxOptions")
    if isinstance(options, Mapping):
        yield from _only(options, "type", _SELINUX_TYPES, f"{path}.seLinuxOptions")
        yield from _only(options, "user", (), f"{path}.seLinuxOptions")
        yield from _only(options, "role", (), f"{path}.seLinuxOptions")
    yield from _only(context, "windowsOptions", (), path)


def _capabilities(capabilities: Any, path: str) -> Iterator[Problem]:
    if capabilities is None:
        return
    if not isinstance(capabilities, Mapping):
        yield Problem(path, found_text(capabilities), "capabilities with drop and add")
        return
    drop, add = capabilities.get("drop"), capabilities.get("add")
    if drop is not None and (not isinstance(drop, list) or "ALL" not in drop):
        yield Problem(f"{path}.drop", found_text(drop), "a list with ALL", REASON)
    for index, name in enumerate(add if isinstance(add, list) else [] if add is None else [add]):
        if not isinstance(name, str) or name not in CAPABILITIES:
            accepted = f"one of {', '.join(sorted(CAPABILITIES))}"
            yield Problem(f"{path}.add[{index}]", found_text(name), accepted, REASON)


def _only(context: Mapping[str, Any], field: str, accepted: tuple[object, ...], path: str) -> Iterator[Problem]:
    value = context.get(field)
    if value is not None and not any(value is item or (isinstance(item, str) and value == item) for item in accepted):
        words = " or ".join(found_text(item) for item in accepted) or "no value"
        yield Problem(f"{path}.{field}", found_text(value), words, REASON)
