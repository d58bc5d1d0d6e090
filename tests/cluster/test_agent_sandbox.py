"""Sandboxes that agent-sandbox makes: a real API server with a CRD of its fields, a broker, and a played controller.

What they share with pods is tried in test_broker.py, by each provider.
"""

import asyncio
from typing import Any

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.sandboxes.agent_sandbox import collection, remove_sandbox_crds
from echorl_testing.sandboxes.broker import Sites
from echorl_testing.waiting import until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("brokers", ["agent-sandbox"], indirect=True),
]
PATIENCE_S = 60.0


async def test_the_controller_is_asked_for_the_brokers_own_pod(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        assert (await asker.put())[0] == 202
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        (pod,), (held,) = run.sandboxes(), at.api.get(collection("Sandbox", at.namespace))["items"]
        template = held["spec"]["podTemplate"]
        for part in ("labels", "annotations"):
            assert held["metadata"][part] == template["metadata"][part]
            assert pod["metadata"][part].items() >= template["metadata"][part].items()
        (owner,) = held["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("EchoRLRun", run.uid)
        assert template["spec"]["securityContext"]["runAsUser"] == 1000
        assert template["spec"]["dnsPolicy"] == "None"
        assert not template["spec"]["automountServiceAccountToken"]
        assert held["spec"].keys() <= {"podTemplate", "operatingMode", "shutdownPolicy"}


async def test_a_controller_that_does_nothing_is_named(brokers: Sites) -> None:
    async with brokers({"startDeadlineSeconds": 10}, controller=False) as at:
        run, asker = at.run()
        run.start_orchestrator()
        status, body = await asker.put(wait_s=1)
        while status == 202:
            status, body = await asker.put(wait_s=1)
        assert (status, body["loss"]) == (410, "refused")
        words = "not ready after 10 s: the controller of agent-sandbox has not made its pod: it has not said why"
        assert words in body["message"]
        assert await asker.keys() == ["a"], "it counts, though it has no pod"
        assert await asker.delete() == 204
        await until(lambda: not at.api.get(collection("Sandbox", at.namespace))["items"], PATIENCE_S)


async def test_what_keeps_the_controller_is_told(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        lift_the_quota = await at.keep_to_one_pod(PATIENCE_S)
        told: dict[str, Any] = {}

        async def says_why() -> None:
            while "exceeded quota: few" not in told.get("reason", ""):
                told.update((await asker.put(wait_s=1))[1])

        await asyncio.wait_for(says_why(), PATIENCE_S)
        assert told["reason"].startswith("the controller of agent-sandbox has not made its pod: Error seen: ")
        lift_the_quota()
        asking = asyncio.create_task(asker.put(wait_s=PATIENCE_S))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        run.up()
        assert (await asking)[0] == 200


async def test_one_whose_pod_somebody_deletes_is_evicted(brokers: Sites) -> None:
    async with brokers() as at:
        run, asker = at.run()
        run.start_orchestrator()
        asking = asyncio.create_task(asker.put(wait_s=PATIENCE_S))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        (pod,) = run.sandboxes()
        path = f"/api/v1/namespaces/{at.namespace}/pods/{pod['metadata']['name']}"
        # A kubelet takes its time to end one.
        at.api.patch(path, {"metadata": {"finalizers": ["echorl.dev/kubelet"]}})
        run.up()
        assert (await asking)[0] == 200
        at.api.delete(path)
        status, body = await asker.get()
        assert (status, body["loss"]) == (410, "evicted")
        assert body["message"] == "Deleted: its pod was deleted: by hand"
        assert await asker.delete() == 204
        at.api.patch(path, {"metadata": {"finalizers": None}})
        await until(lambda: not at.api.get(collection("Sandbox", at.namespace))["items"], PATIENCE_S)


async def test_where_it_is_not_installed_or_not_used_runs_are_refused_by_name(brokers: Sites, api: Api) -> None:
    async with brokers({"agentSandbox": False}) as at:
        run, asker = at.run()
        run.start_orchestrator()
        status, body = await asker.put()
        assert (status, body["loss"]) == (409, "refused")
        assert "spec.sandboxes.provider: found agent-sandbox, accepted is pod" in body["message"]
    async with brokers(controller=False) as at:
        remove_sandbox_crds(api)
        run, asker = at.run("two")
        run.start_orchestrator()
        words = "found agent-sandbox, but the cluster has no Sandboxes of agents.x-k8s.io/v1beta1"
        status, body = await asker.put()
        assert (status, body["loss"]) == (409, "refused")
        assert words in body["message"]
        status, body = await asker.all()
        assert (status, body["loss"]) == (409, "refused")
        assert words in body["message"]
