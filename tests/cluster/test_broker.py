"""The broker as a process, with exactly its rights, on a real API server; kubelets and the run are played."""

import asyncio
import hashlib
from typing import Any

import pytest

from echorl_testing.sandboxes.broker import PlayedRun, Sites
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
by_each_provider = pytest.mark.parametrize("brokers", ["pod", "agent-sandbox"], indirect=True)


@by_each_provider
async def test_a_sandbox_is_made_found_again_and_ended(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator(ip="10.1.1.1")
        asking = asyncio.create_task(asker.put("agent", wait_s=PATIENCE_S, gateway=True))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        run.up(ip="10.2.2.2")
        status, ready = await asking
        assert (status, ready["address"], ready["gateway"]) == (200, "http://10.2.2.2:7070", "http://10.1.1.1:8100")
        (pod,) = run.sandboxes()
        command = pod["spec"]["containers"][0]["command"]
        assert command[command.index("--token-sha256") + 1] == hashlib.sha256(ready["token"].encode()).hexdigest()
        assert ready["token"] not in str(pod)
        assert await asker.put("agent") == (200, ready) == await asker.get("agent")
        assert await asker.keys() == ["agent"]
        assert await asker.delete("agent") == 204
        assert await asker.keys() == []
        run.api.delete(f"/api/v1/namespaces/{run.namespace}/pods/{pod['metadata']['name']}", grace_s=0)
        asking = asyncio.create_task(asker.put("agent", wait_s=PATIENCE_S))
        first = pod["metadata"]["uid"]
        await until(lambda: [one["metadata"]["uid"] != first for one in run.sandboxes()] == [True], PATIENCE_S)
        run.up()
        status, again = await asking
        assert (status, again["gateway"]) == (200, None)
        assert again["token"] != ready["token"], "what knew the first one's token has none of the second's"
        assert await asker.delete("nothing") == 204
        status, body = await asker.get("nothing")
        assert (status, body["loss"]) == (410, "evicted")


async def test_who_is_not_the_run_is_told_nothing(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        other, _ = at.run("other")
        answers = [await at.asker(run, key).put() for key in ("wrong", other.key, "\xff")]
        nobody = at.asker(run, run.key)
        nobody._run = _Renamed(run, "nobody")
        elsewhere = at.asker(run, run.key)
        elsewhere._run = _Renamed(run, run.name, namespace="kube-system")
        answers += [await nobody.put(), await elsewhere.put(), await asker.put(run_uid=other.uid)]
        assert {status for status, _ in answers} == {403}
        (words,) = {str(sorted(body.items())) for _, body in answers}
        assert "there is no such run here, or this is not its key" in words
        assert await at.asker(run, "wrong").delete() == 403
        assert not run.sandboxes()


class _Renamed:
    def __init__(self, run: PlayedRun, name: str, namespace: str | None = None) -> None:
        self.name, self.namespace, self.uid = name, namespace or run.namespace, run.uid
        self.key = run.key


@by_each_provider
async def test_an_agents_installation_is_an_image_in_a_folder_of_the_pod(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        assert (await asker.put(volumes={"/opt/agent": "registry.example.com/agent:2"}))[0] == 202
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        (pod,) = run.sandboxes()
        (volume,) = (one for one in pod["spec"]["volumes"] if "image" in one)
        assert volume["image"] == {"reference": "registry.example.com/agent:2", "pullPolicy": "IfNotPresent"}
        mounts = {one["mountPath"]: one for one in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounts["/opt/agent"] == {"name": volume["name"], "mountPath": "/opt/agent", "readOnly": True}


async def test_what_a_run_may_not_have_is_refused_with_the_reason(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        assert_refused(await asker.put(), 410, "run one has no orchestrator")
        run.start_orchestrator()
        words = "volumes[/agent]: found '/agent.tar', accepted is the reference of a container image"
        assert_refused(await asker.put(volumes={"/agent": "/agent.tar"}), 410, words)
        assert_refused(await asker.put("%2e%2e"), 404, "Not Found")
        assert_refused(await asker.put("a%20b"), 410, "key: found 'a b', accepted are up to 63 letters")
        for changes, told in (
            ({"workdir": "task"}, "workdir"),
            ({"image": ""}, "image"),
            ({"ttl_s": 0}, "ttl_s"),
            ({"limits": {"cpu": 1, "memory_bytes": 0, "disk_bytes": 1}}, "memory_bytes"),
        ):
            assert_refused(await asker.put(**changes), 400, told)
        assert_refused(await asker.put(image=" no image"), 410, "spec.containers[0].image")
        other, of_process = at.run("by-process", provider="process")
        other.start_orchestrator()
        assert_refused(await of_process.put(), 409, "spec.sandboxes.provider: found process, accepted is pod")
        for phase in ("Succeeded", "Failed", "Suspended"):
            run.phase(phase)
            assert_refused(await asker.put(), 409, f"run one: its run is {phase}")
        assert not run.sandboxes()


def assert_refused(answer: tuple[int, dict[str, Any]], status: int, words: str) -> None:
    found, body = answer
    assert (found, body.get("loss")) == (status, "refused"), body
    assert words in body["message"]


@by_each_provider
async def test_the_run_is_the_ceiling(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run(concurrency=1)
        run.start_orchestrator()
        most = {"cpu": 64, "memory_bytes": 1 << 40, "disk_bytes": 1 << 40}
        for key in "abcd":
            status, body = await asker.put(key, limits=most, ttl_s=1e6)
            assert status == 202, body
        assert (await asker.put("e"))[1]["reason"] == "the run has 4 sandboxes, accepted are 4 at the same time"
        assert await asker.keys() == ["a", "b", "c", "d"]
        await until(lambda: len(run.sandboxes()) == 4, PATIENCE_S)
        for pod in run.sandboxes():
            (container,) = pod["spec"]["containers"]
            limits = {"cpu": "1", "memory": "256Mi", "ephemeral-storage": "1056Mi"}
            assert container["resources"] == {"limits": limits, "requests": limits}
            assert pod["spec"]["activeDeadlineSeconds"] == 600
        assert await asker.delete("b") == 204
        status, body = await asker.put("e", wait_s=PATIENCE_S / 10)
        assert (status, await asker.keys()) == (202, ["a", "c", "d", "e"])


async def test_who_waits_is_told_why_and_goes_on_when_there_is_room(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        lift_the_quota = await at.keep_to_one_pod(PATIENCE_S)
        status, body = await asker.put()
        assert status == 202
        assert "exceeded quota: few" in body["reason"]
        asking = asyncio.create_task(asker.put(wait_s=PATIENCE_S))
        lift_the_quota()
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        told: list[dict[str, Any]] = []

        async def waits_for_a_node() -> None:
            while "available" not in (told[-1]["reason"] if told else ""):
                told.append((await asker.put(wait_s=1))[1])

        # No node of this cluster: the scheduler says so in its own words.
        await asyncio.wait_for(waits_for_a_node(), PATIENCE_S)
        run.up()
        assert (await asking)[0] == 200


LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "low on"),
    "overused": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "Pod ephemeral local storage usage exceeds the total limit",
        },
        "exceeds the total limit",
    ),
    "expired": ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}, "its time"),
    "image": (
        {
            "containerStatuses": [
                {
                    "name": "sandbox",
                    "image": "x",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image"}},
                }
            ]
        },
        "couldn't parse image",
    ),
}


@by_each_provider
async def test_losses_are_told_apart_and_a_lost_one_can_be_had_again(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        for loss, (status, words) in LOSSES.items():
            asking = asyncio.create_task(asker.put(wait_s=PATIENCE_S))
            await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
            (pod,) = run.sandboxes()
            run.play(pod["metadata"]["name"], status)
            code, body = await asking
            assert (code, body["loss"]) == (410, loss), body
            assert words in body["message"]
            assert await asker.get() == (code, body)
            assert await asker.delete() == 204
            await until(lambda: not run.sandboxes(), PATIENCE_S)


async def test_what_is_late_is_lost(brokers: Sites) -> None:
    async with brokers({"startDeadlineSeconds": 10}) as at:
        run, asker = at.run()
        run.start_orchestrator()
        status, body = await asker.put(wait_s=PATIENCE_S)
        while status == 202:
            status, body = await asker.put(wait_s=PATIENCE_S)
        assert (status, body["loss"]) == (410, "refused")
        assert "not ready after 10 s: its pod waits for a node" in body["message"]


@by_each_provider
async def test_nothing_outlives_its_reason(brokers: Sites) -> None:
    async with brokers(None, "--reap-every", "0.2") as at:
        keeps, of_keeps = at.run("keeps")
        keeps.start_orchestrator()
        ends, of_ends = at.run("ends")
        ends.start_orchestrator()
        replaced, of_replaced = at.run("replaced")
        replaced.start_orchestrator()
        for run, asker in ((keeps, of_keeps), (ends, of_ends), (replaced, of_replaced)):
            assert (await asker.put())[0] == 202
            await until(lambda run=run: len(run.sandboxes()) == 1, PATIENCE_S)
        ends.phase("Succeeded")
        await until(lambda: not ends.sandboxes(), PATIENCE_S)
        replaced.end_orchestrator()
        await until(lambda: not replaced.sandboxes(), PATIENCE_S)
        replaced.start_orchestrator()
        async with asyncio.timeout(PATIENCE_S):
            while not replaced.sandboxes():  # who was there before it may still be going
                assert (await of_replaced.put(wait_s=1))[0] == 202
        # Of an earlier run of the same name: its owner's uid is another.
        keeps.api.delete(keeps.path)
        await until(lambda: not keeps.sandboxes(), PATIENCE_S)
        assert len(replaced.sandboxes()) == 1, "what has a reason stays"
