"""What is wrong with a role's pod as a whole, once the user's template is on it."""

from collections.abc import Iterator, Mapping
from typing import Any

from echorl_core.problem import Problem
from echorl_manifest.schema import found_text
from echorl_operator.children import pods
from echorl_operator.children.overlay import merged
from echorl_operator.children.stored import stored
from echorl_operator.children.target import Target
from echorl_operator.names import PodRole
from echorl_operator.quantities import value


def pod_problems(target: Target, role: PodRole, path: str) -> list[Problem]:
    """Problems of a template that ``overlay_problems`` accepts. ``path``: of the template in the manifest."""
    overlay = target.fields(role).template
    try:
        stored(overlay)
    except ValueError as error:
        return [Problem(path, str(error), "Kubernetes quantities")]
    spec = merged({"spec": pods.base_spec(target, role)}, overlay, path)["spec"]
    container = next(container for container in spec["containers"] if container["name"] == role)
    where = f"{path}.spec.containers[{role}].resources"
    resources = container["resources"]
    if not _is_resources(resources):
        return [Problem(where, found_text(resources), "a mapping with requests and limits")]
    return [*_gpus(target, role, resources, where), *_memory(spec, resources, where)]


def _is_resources(resources: Any) -> bool:
    if not isinstance(resources, Mapping):
        return False
    return all(isinstance(resources.get(field, {}), Mapping) for field in ("requests", "limits"))


def _gpus(target: Target, role: PodRole, resources: Mapping[str, Any], path: str) -> Iterator[Problem]:
    name, wanted = target.settings.gpu_resource, str(target.gpus(role))
    for field in ("requests", "limits"):
        asked = (resources.get(field) or {}).get(name, "0")
        if value(asked) != value(wanted):
            reason = f"spec.{role}.gpusPerReplica says how many"
            yield Problem(f"{path}.{field}[{name}]", found_text(asked), wanted, reason)


def _memory(spec: dict[str, Any], resources: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """What lies in memory-backed volumes counts against the container's limit."""
    limit = (resources.get("limits") or {}).get("memory")
    in_memory = [volume["emptyDir"].get("sizeLimit") for volume in spec["volumes"] if _is_in_memory(volume)]
    needed = sum((value(size) for size in in_memory if size is not None), value(0))
    if limit is not None and value(limit) <= needed:
        accepted = f"more than the {float(needed / 2**30):g}Gi that memory-backed volumes may hold"
        yield Problem(f"{path}.limits.memory", found_text(limit), accepted, "what lies in /dev/shm counts as memory")


def _is_in_memory(volume: dict[str, Any]) -> bool:
    source = volume.get("emptyDir")
    return isinstance(source, dict) and source.get("medium") == "Memory"
