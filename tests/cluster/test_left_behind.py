"""What attempts and runs leave behind: old renderings go, a volume as the manifest says, and nothing else."""

from collections import Counter
from typing import Any

import pytest

from echorl_operator import names
from echorl_testing.operator.lives_together import Together, operated
from echorl_testing.operator.operator_world import World

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120.0
together = Together(operated, at_once=5)


def objects(world: World, group: str, plural: str) -> dict[str, dict[str, Any]]:
    items = world.api.get(f"/{group}/namespaces/{world.namespace}/{plural}")["items"]
    return {one["metadata"]["name"]: one for one in items if one["metadata"]["name"] != "kube-root-ca.crt"}


def revisions(world: World) -> tuple[set[str], set[str]]:
    """Of runs, by attempt; and those of others."""
    found = objects(world, "apis/apps/v1", "controllerrevisions")
    ours = {name for name, one in found.items() if one["metadata"]["ownerReferences"][0]["kind"] == names.KIND}
    return {name.split("-")[1] for name in ours}, found.keys() - ours


def mounted(world: World) -> set[str]:
    """ConfigMaps that pods use."""
    volumes = (volume for pod in world.pods().values() for volume in pod["spec"]["volumes"])
    return {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}


def role(config_map: str) -> str:
    """``one-trainer-0123456789``"""
    return config_map.split("-")[1]


@together
async def test_what_older_attempts_left_goes_and_nothing_else(world: World) -> None:
    maps = f"/api/v1/namespaces/{world.namespace}/configmaps"
    world.api.create(maps, {"metadata": {"name": "of-somebody"}, "data": {"a": "b"}})
    world.create()
    await world.phase("Running", attempt=1, seconds=PATIENCE_S)
    labels = next(iter(world.pods("trainer").values()))["metadata"]["labels"]
    ours = {key: value for key, value in labels.items() if key in names.OUR_LABELS}
    world.api.create(maps, {"metadata": {"name": "looks-like-ours", "labels": ours}, "data": {"a": "b"}})
    first = objects(world, "api/v1", "configmaps").keys()
    for attempt, rate in ((2, 2e-5), (3, 3e-5)):
        world.edit({"trainer": {"optimizer": {"lr": rate}}})
        await world.phase("Running", attempt=attempt, seconds=PATIENCE_S)
    await world.until("two attempts' revisions are left", lambda: revisions(world)[0] == {"2", "3"}, PATIENCE_S)
    assert revisions(world)[1], "the StatefulSet keeps its own"

    def gone() -> set[str]:
        return first - objects(world, "api/v1", "configmaps").keys()

    await world.until("the first attempt's config is gone", lambda: "trainer" in map(role, gone()), PATIENCE_S)
    left = objects(world, "api/v1", "configmaps").keys()
    assert {"of-somebody", "looks-like-ours"} | mounted(world) <= left
    of_roles = Counter(map(role, left - {"of-somebody", "looks-like-ours"}))
    assert of_roles["trainer"] == 2, "of this attempt and of the one before"
    assert of_roles["inference"] == 1, "its config has not changed"


def claim(world: World) -> dict[str, Any] | None:
    found: dict[str, Any] | None = world.api.find(
        f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/one-volume"
    )
    return found


def is_going(world: World) -> bool:
    """Or gone: its protection ends with the last pod that mounts it."""
    found = claim(world)
    return found is None or "deletionTimestamp" in found["metadata"]


def owners(world: World) -> set[str]:
    found = claim(world)
    assert found is not None
    return {one["kind"] for one in found["metadata"].get("ownerReferences", [])}


@together
async def test_a_volume_goes_with_a_run_that_ended_if_its_manifest_says_so_now(world: World) -> None:
    world.create()
    await world.phase("Running", seconds=PATIENCE_S)
    assert owners(world) == set()
    await world.cluster.succeed()
    await world.phase("Succeeded", seconds=PATIENCE_S)
    world.edit({"storage": {"retain": False}})
    await world.until("the run owns its volume", lambda: owners(world) == {names.KIND}, PATIENCE_S)
    assert world.status()["attempt"] == 1
    world.api.delete(f"{world.runs}/one")
    await world.until("the volume goes", lambda: is_going(world), PATIENCE_S)


@together
async def test_a_volume_is_saved_and_other_owners_stay(world: World) -> None:
    world.create(storage={"retain": False})
    await world.phase("Running", attempt=1, seconds=PATIENCE_S)
    assert owners(world) == {names.KIND}
    account = next(one for one in objects(world, "api/v1", "serviceaccounts").values())
    other = {"apiVersion": "v1", "kind": "ServiceAccount", "name": account["metadata"]["name"]}
    found = claim(world)
    assert found is not None
    both = [*found["metadata"]["ownerReferences"], {**other, "uid": account["metadata"]["uid"]}]
    path = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/one-volume"
    world.api.patch(path, {"metadata": {"ownerReferences": both}})
    world.edit({"storage": {"retain": True}})
    await world.until("the run gave it up", lambda: owners(world) == {"ServiceAccount"}, PATIENCE_S)
    assert world.status()["attempt"] == 1, "no pod restarts for it"
