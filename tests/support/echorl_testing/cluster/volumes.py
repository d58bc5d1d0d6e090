"""Volumes for real pods: folders of this machine, bound to one claim each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echorl_testing.cluster.api import Api

_PERSISTENT = "/api/v1/persistentvolumes"


@contextmanager
def folder_volume(
    api: Api, namespace: str, claim: str, folder: Path, *, size: str = "1Gi", storage_class: str = ""
) -> Iterator[str]:
    """A volume that is ``folder`` and that only the claim of this name can have; yields the volume's name.

    The kubelet changes no owner in such a volume, whatever ``fsGroup`` says. The folder is not deleted with it.
    """
    name = f"{namespace}-{claim}"
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    api.create(_PERSISTENT, body)
    try:
        yield name
    finally:
        api.delete(f"{_PERSISTENT}/{name}")


def read_only_claim(api: Api, namespace: str, name: str) -> None:
    """A claim for a volume that :func:`folder_volume` made."""
    spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
    api.create(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": spec})
