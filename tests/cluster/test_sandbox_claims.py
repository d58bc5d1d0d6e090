"""Pools of agent-sandbox that a run's sandboxes are claimed from: a real API server, a broker, a played controller."""

import asyncio
import hashlib
from typing import Any

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.sandboxes.agent_sandbox import collection
from echorl_testing.sandboxes.broker import Asker, PlayedRun, Site, Sites
from echorl_testing.waiting import until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("brokers", ["agent-sandbox"], indirect=True),
]
PATIENCE_S = 60.0
WARM, CLAIM = "echorl.dev/sandbox-warm", "echorl.dev/sandbox-claim"
KINDS = ("Sandbox", "SandboxTemplate", "SandboxWarmPool", "SandboxClaim")
AGENT = {"gateway": True}


def held(at: Site, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = at.api.get(collection(kind, at.namespace))["items"]
    return found


def replicas(at: Site) -> list[int]:
    return [pool["spec"]["replicas"] for pool in held(at, "SandboxWarmPool")]


def idle(run: PlayedRun) -> list[dict[str, Any]]:
    pods = [pod for pod in run.sandboxes() if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in pods if WARM in pod["metadata"]["labels"] and CLAIM not in pod["metadata"]["labels"]]


async def two_siblings(asker: Asker) -> None:
    for key in ("a", "b"):
        await asker.made(key, **AGENT)


async def is_gone(at: Site, run: PlayedRun) -> None:
    """Return once nothing of a run is left."""
    await until(lambda: not run.sandboxes() and not any(held(at, kind) for kind in KINDS), PATIENCE_S)


async def test_siblings_get_theirs_from_a_pool_and_graders_never(brokers: Sites) -> None:
    async with brokers(None, "--reap-every", "0.2") as at:
        run, asker = at.run(warmReplicas=1, concurrency=4)
        run.start_orchestrator()
        for key in ("grader-1", "grader-2"):
            await asker.made(key)
        await asker.made("a", **AGENT)
        assert replicas(at) == [], "nobody else has one like it yet"
        await asker.made("b", **AGENT)
        assert replicas(at) == [1]
        (template,), (direct,) = held(at, "SandboxTemplate"), run.of_key("b")
        (owner,) = template["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("EchoRLRun", run.uid)
        await until(lambda: len(idle(run)) == 1, PATIENCE_S)
        (kept,) = idle(run)
        assert await asker.keys() == ["a", "b", "grader-1", "grader-2"], "nobody has the idle one"
        run.up(ip="10.3.3.3")
        status, ready = await asker.put("c", wait_s=PATIENCE_S, **AGENT)
        assert (status, ready["address"]) == (200, "http://10.3.3.3:7070")
        (claimed,), (claim,) = run.of_key("c"), held(at, "SandboxClaim")
        assert claimed["metadata"]["uid"] == kept["metadata"]["uid"]
        assert claim["status"]["sandbox"]["name"] == claimed["metadata"]["name"]
        words = claimed["spec"]["containers"][0]["command"]
        assert words[words.index("--token-sha256") + 1] == hashlib.sha256(ready["token"].encode()).hexdigest()
        assert claimed["spec"]["activeDeadlineSeconds"] < 600, "its own time has begun"
        for part in ("securityContext", "volumes", "dnsPolicy", "automountServiceAccountToken", "serviceAccountName"):
            assert claimed["spec"][part] == direct["spec"][part]
        assert direct["metadata"]["labels"].items() - claimed["metadata"]["labels"].items() == {
            one for one in direct["metadata"]["labels"].items() if "agents.x-k8s.io" in one[0] or "shape" in one[0]
        }
        await until(lambda: len(idle(run)) == 1, PATIENCE_S)
        assert await asker.put("c", **AGENT) == (200, ready) == await asker.get("c")
        assert len(held(at, "SandboxClaim")) == 1
        assert await asker.delete("c") == 204
        await until(lambda: not run.of_key("c") and not held(at, "SandboxClaim"), PATIENCE_S)
        run.phase("Suspended")
        await is_gone(at, run)


async def test_where_none_is_ready_the_claims_own_is_made(brokers: Sites, api: Api) -> None:
    async with brokers() as at:
        run, asker = at.run(warmReplicas=1, concurrency=4)
        run.start_orchestrator()
        await two_siblings(asker)
        await until(lambda: len(idle(run)) == 1, PATIENCE_S)
        # The idle one cannot be had: the pool has no other.
        api.patch(
            f"{collection('SandboxWarmPool', at.namespace)}/{held(at, 'SandboxWarmPool')[0]['metadata']['name']}",
            {"spec": {"replicas": 0}},
        )
        await until(lambda: not idle(run), PATIENCE_S)
        asking = asyncio.create_task(asker.put("c", wait_s=PATIENCE_S, **AGENT))
        await until(lambda: len(run.of_key("c")) == 1, PATIENCE_S)
        run.up()
        assert (await asking)[0] == 200
        (claim,), (pod,) = held(at, "SandboxClaim"), run.of_key("c")
        assert claim["status"]["sandbox"]["name"] == claim["metadata"]["name"] == pod["metadata"]["name"]
        assert replicas(at) == [1], "and the next one is kept ready again"
        api.delete(run.path)
        await is_gone(at, run)


async def test_pools_give_way_to_who_waits_and_end_when_nothing_of_them_is_used(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run(warmReplicas=3, concurrency=1)
        run.start_orchestrator()
        await two_siblings(asker)
        assert (await asker.put("b", **AGENT))[0] == 200
        assert replicas(at) == [2], "the run has four"
        status, _ = await asker.put("other", wait_s=5, image="other:1", **AGENT)
        assert status == 202
        await until(lambda: len(run.of_key("other")) == 1, PATIENCE_S)
        assert sum(replicas(at)) <= 1, "nobody waits for room that an idle one takes"
        for key in ("a", "b"):
            assert await asker.delete(key) == 204
        await until(lambda: not run.of_key("a") and not run.of_key("b"), PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            # It waits for a node, whose room an idle one might have.
            while replicas(at) != [0]:
                assert (await asker.put("other", wait_s=1, image="other:1", **AGENT))[0] == 202
        run.up()
        assert (await asker.put("other", wait_s=PATIENCE_S, image="other:1", **AGENT))[0] == 200
        await until(lambda: not held(at, "SandboxWarmPool") and not held(at, "SandboxTemplate"), PATIENCE_S)
