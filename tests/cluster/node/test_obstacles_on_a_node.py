"""What stands in the way of pods that really run: an image, a Secret, a ConfigMap. Told soon, healed by itself.

Prepare's image is a shell script that says what a prepare that went well says.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from echorl_core.termination_message import encoded
from echorl_operator.kube.credentials import from_kubeconfig
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators.tokens import Tokens
from echorl_operator.process import Options, running
from echorl_operator.settings import Images, Settings
from echorl_testing.cluster import packages
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.images import Image
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.load import stretched
from echorl_testing.operator.operator_world import World
from echorl_testing.operator.scripted_cluster import prepared

pytestmark = pytest.mark.timeout(400)

TOLD_S = 10.0
"""After the pod has a node, on a machine that keeps up."""
HEALS_S = 120.0
"""The kubelet tries again after 10, 20, 40 s."""
HERE, LATER = "echorl.test/prepare:1", "echorl.test/prepare:2"
HUB_MODEL = {"name": "someone/tiny", "renderer": "compact", "dtype": "float32", "maxModelLen": 256}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs as ``python`` in these images."""
    path = tmp_path_factory.mktemp("image") / "python"
    words = encoded(prepared(1)).decode()
    path.write_text(f"#!/bin/busybox sh\nprintf '%s' '{words}' > /dev/termination-log\n")
    return path


def image(control_plane: Cluster, program: Path, name: str) -> None:
    files = {"bin/busybox": packages.find("busybox"), "bin/python": program}
    control_plane.node.import_image(Image(name, files=files, user=10001))


@pytest.fixture
def volume(api: Api, namespace: str, tmp_path: Path) -> Iterator[None]:
    with folder_volume(api, namespace, "one-volume", tmp_path):
        yield


@pytest.fixture
async def world(
    api: Api, connection: Connection, real_node: str, namespace: str, volume: None, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    install_crd(api)
    name = request.param
    settings = Settings(
        operator_version="1", images=Images(trainer=name, inference=name, inference_cpu=name, orchestrator=name)
    )
    credentials = from_kubeconfig(connection.kubeconfig)
    await credentials.load()
    options = Options(instance="test", lease_namespace=namespace, namespaces=[namespace], lead=False, workers=2)
    tokens = Tokens(b"a master key of tests, long enough")
    async with running(options, settings, tokens, credentials, Metrics()) as (operator, _):
        yield World(api, namespace, None, operator)  # type: ignore[arg-type]


async def blocked(world: World, reason: str, *words: str) -> None:
    def told() -> bool:
        found = world.condition("Blocked")
        right = (found.get("status"), found.get("reason")) == ("True", reason)
        # A kubelet may say something else of the same kind first.
        return right and all(word in found["message"] for word in words)

    def scheduled() -> Any:
        return world.pods("prepare").get("one-prepare-1", {}).get("spec", {}).get("nodeName")

    await world.until("prepare has a node", scheduled)
    await world.until(f"Blocked is {reason}: {words}", told, stretched(TOLD_S))


async def is_prepared(world: World) -> None:
    await world.until("prepare has run", lambda: world.status().get("control", {}).get("preparedAttempt") == 1, HEALS_S)
    assert world.condition("Blocked").get("reason") != "ContainerNotCreated"
    assert "one-prepare-1" not in world.condition("Blocked")["message"]


@pytest.mark.parametrize("world", [LATER], indirect=True)
async def test_an_image_that_cannot_be_pulled(world: World, control_plane: Cluster, program: Path) -> None:
    world.create(storage={"size": "1Gi"})
    await blocked(world, "ImagePullFailed", "one-prepare-1 cannot get its image", LATER)
    image(control_plane, program, LATER)
    await is_prepared(world)


@pytest.mark.parametrize("world", [HERE], indirect=True)
async def test_a_secret_and_a_config_map_that_are_missing(world: World, control_plane: Cluster, program: Path) -> None:
    image(control_plane, program, HERE)
    world.create(
        storage={"size": "1Gi"}, model={**HUB_MODEL, "tokenSecretName": "hub"}, code={"configMap": "environments"}
    )
    await blocked(world, "VolumeNotMounted", 'configmap "environments" not found')
    maps = f"/api/v1/namespaces/{world.namespace}/configmaps"
    world.api.create(maps, {"metadata": {"name": "environments"}, "data": {"a.py": ""}})

    def next_is_told() -> bool:
        return world.condition("Blocked").get("reason") == "ContainerNotCreated"

    await world.until("the Secret is told", next_is_told, HEALS_S)
    assert 'secret "hub" not found' in world.condition("Blocked")["message"]
    secrets = f"/api/v1/namespaces/{world.namespace}/secrets"
    world.api.create(secrets, {"metadata": {"name": "hub"}, "stringData": {"token": "t"}})
    await is_prepared(world)
