"""Pods that are ready before they are asked for: the broker as a process on a real API server; kubelets are played."""

import asyncio
import time
from typing import Any

import pytest

from echorl_operator.observed.times import from_text
from echorl_testing.cluster.api import Api
from echorl_testing.sandboxes.broker import WANTED, PlayedRun, Sites
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
WARM, CLAIM, KEY = "echorl.dev/sandbox-warm", "echorl.dev/sandbox-claim", "echorl.dev/sandbox-key"
TTL_S = 300


def warm(run: PlayedRun) -> list[dict[str, Any]]:
    return [pod for pod in run.sandboxes() if living(pod) and is_warm(pod)]


def is_warm(pod: dict[str, Any]) -> bool:
    return WARM in pod["metadata"]["labels"] and CLAIM not in pod["metadata"]["labels"]


def living(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def of_key(run: PlayedRun, key: str) -> list[dict[str, Any]]:
    return [pod for pod in run.of_key(key) if living(pod)]


def names(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


async def test_a_warm_pod_is_claimed_once_and_replaced_at_once(brokers: Sites) -> None:
    async with brokers(None, "--reap-every", "0.2") as at:
        run, asker = at.run(warmReplicas=1)
        run.start_orchestrator()
        await asker.made("first")
        (kept,) = warm(run)
        assert KEY not in kept["metadata"]["annotations"]
        assert kept["spec"]["activeDeadlineSeconds"] == 2 * TTL_S
        assert await asker.keys() == ["first"], "nobody has the warm one"
        assert (await asker.put("second"))[0] == 202, "it is not ready, and another is made"
        assert await asker.delete("second") == 204
        run.up(ip="10.3.3.3")
        asked_at = time.time()
        status, ready = await asker.put("third")
        answered_at = time.time()
        assert (status, ready["address"]) == (200, "http://10.3.3.3:7070"), "without any waiting"
        (claimed,) = of_key(run, "third")
        assert claimed["metadata"]["uid"] == kept["metadata"]["uid"]
        made_at = from_text(claimed["metadata"]["creationTimestamp"]) or 0.0
        begins_at = made_at + claimed["spec"]["activeDeadlineSeconds"] - TTL_S
        assert asked_at - 2 <= begins_at <= answered_at + 2, "its own time begins now"
        (replaced,) = warm(run)
        assert replaced["metadata"]["uid"] != kept["metadata"]["uid"]
        # A scheduler that is late says of the one that is up that no node takes it.
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
        run.play(claimed["metadata"]["name"], {"conditions": [*claimed["status"]["conditions"], unscheduled]})
        assert await asker.put("third") == (200, ready) == await asker.get("third")
        assert names(warm(run)) == names([replaced]), "who asks again takes none"
        # A sandbox of another image has no use for it, nor has one of other limits.
        for key, wanted in (("image", {"image": "other:1"}), ("limits", {"ttl_s": 200})):
            assert (await asker.put(key, **wanted))[0] == 202
            assert await asker.delete(key) == 204
        run.up(ip="10.4.4.4")
        assert await asker.delete("third") == 204
        await until(lambda: not of_key(run, "third"), PATIENCE_S)
        status, again = await asker.put("third")
        assert (status, again["address"]) == (200, "http://10.4.4.4:7070")
        assert again["token"] != ready["token"], "no pod is used twice"
        run.phase("Suspended")
        await until(lambda: not run.sandboxes(), PATIENCE_S)


async def test_the_newest_images_are_kept_and_no_more_than_is_to_come(brokers: Sites, api: Api) -> None:
    async with brokers() as at:
        run, asker = at.run(warmReplicas=2, concurrency=4)
        run.start_orchestrator()
        for key in ("a", "b"):
            await asker.made(key)
        assert len(warm(run)) == 2
        await asker.made("other", image="other:1")
        images = sorted(pod["spec"]["containers"][0]["image"] for pod in warm(run))
        assert images == ["other:1", WANTED["image"]]
        api.patch(f"{run.path}/status", {"status": {"step": 10_000}})
        assert (await asker.put("other", image="other:1"))[0] == 200
        await until(lambda: not warm(run), PATIENCE_S)


async def test_warm_pods_give_way(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run(warmReplicas=3, concurrency=1)
        run.start_orchestrator()
        await asker.made("first")
        for _ in range(2):
            assert (await asker.put("first"))[0] == 200
        assert len(warm(run)) == 3, "the run has four"
        status, _ = await asker.put("other", wait_s=5, image="other:1")
        assert status == 202
        assert len(of_key(run, "other")) == 1, "nobody waits for room that a warm one takes"
        assert len(warm(run)) <= 2
        # It waits for a node, whose room a warm one might have.
        async with asyncio.timeout(PATIENCE_S):
            while warm(run):
                await asker.put("other", wait_s=1, image="other:1")
        assert len(of_key(run, "other")) == 1
