"""Parts of the pods of a rendered run."""

from typing import Any

from echorl_testing.manifests.documents import with_value
from echorl_testing.operator.rendered import pod_specs, rendered


def specs(document: dict[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
    """Of pods, by role; ``options`` as for ``rendered``."""
    return dict(pod_specs(rendered(document, **options)))


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Its container of ours."""
    container: dict[str, Any] = spec["containers"][0]
    return container


def env(spec: dict[str, Any]) -> dict[str, Any]:
    """Variables of that container: values, or where they come from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in main(spec)["env"]}


def mounts(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of that container, by path."""
    return {one["mountPath"]: one for one in main(spec)["volumeMounts"]}


def overlaid(document: dict[str, Any], role: str, container: dict[str, Any]) -> dict[str, Any]:
    """A manifest whose template of a role says this of our container."""
    return with_value(document, f"spec.{role}.template", {"spec": {"containers": [{"name": role, **container}]}})
