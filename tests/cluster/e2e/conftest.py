"""One installation from built images, for all tests of this folder: ``make e2e``."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing.cluster import image_loading
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.local.local_run import write_model
from echorl_testing.operator.site import REPOSITORY, Site, own, site

IMAGES = ("operator", "orchestrator", "trainer", "inference-cpu")
NAMESPACE = "training"
READY_S = 30.0
"""On a machine that keeps up."""


@pytest.fixture(scope="session")
def real_node(control_plane: Cluster) -> Iterator[str]:
    """One node for all tests: images are loaded once."""
    control_plane.node.ensure()
    image_loading.load(control_plane.node, IMAGES)
    yield control_plane.node.name
    control_plane.node.stop()


@pytest.fixture(scope="session")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs without a claim of their own share, with a model of random weights."""
    folder = tmp_path_factory.mktemp("volume")
    write_model(folder / "models" / "tiny")
    own(folder)
    return folder


@pytest.fixture(scope="session")
def installed(control_plane: Cluster, real_node: str, volume: Path) -> Iterator[Site]:
    """Both charts; a namespace of the ``restricted`` standard with a claim ``tiny``."""
    api, labels = control_plane.api, {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    out = Path(os.environ.get("ECHORL_E2E_OUT", REPOSITORY / "runs" / "e2e"))
    with folder_volume(api, NAMESPACE, "tiny", volume), site(control_plane, NAMESPACE, out) as made:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        claims = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
        api.create(claims, {"metadata": {"name": "tiny"}, "spec": spec})
        seconds = made.install(values())
        made.transcript.say(f"the operator is ready {seconds:.1f} s after helm install began")
        assert seconds <= READY_S
        yield made


def values(**changes: object) -> dict[str, object]:
    """Of the operator's chart. ``helm test`` has a model of the cluster's own, as there is no way to a hub."""
    model = {"name": "/models/tiny", "renderer": "compact", "maxModelLen": 256, "dtype": "float32"}
    spec = {"model": model, "storage": {"claimName": "tiny", "size": None, "accessMode": None, "retain": None}}
    return {"test": {"spec": spec, "timeoutSeconds": 600}, **changes}
