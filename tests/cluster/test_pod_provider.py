"""The orchestrator's provider of pods, against a real broker on a real API server; kubelets and the run are played."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from echorl_core.config import EnvironmentConfig, SandboxesConfig
from echorl_orchestrator.failures import EpisodeError
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLimits, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.lent import BrokerKey, Lending
from echorl_orchestrator.sandboxes.pod.provider import Access, Patience, PodSandboxes
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.pool import WorkerPool
from echorl_orchestrator.workers.worker import WorkerSpec
from echorl_testing.ports import free_port
from echorl_testing.sandboxes.broker import PlayedRun, Site, Sites
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
SUPPORT = str(Path(__file__).parents[1] / "support")
SPEC = SandboxSpec("registry.example.com/task:1", "/task", limits=SandboxLimits(memory_bytes=64 << 20), gateway=True)


def access(at: Site, run: PlayedRun, key: str | None = None) -> Access:
    return Access(f"{at.url}/runs/{run.namespace}/{run.name}", run.uid, key or run.key)


def config(at: Site, run: PlayedRun) -> SandboxesConfig:
    return SandboxesConfig(
        provider="pod",
        broker_url=access(at, run).url,
        cpu=1.0,
        processes=64,
        concurrency=1,
        memory_bytes=1 << 30,
        disk_bytes=1 << 30,
        ttl_s=600.0,
    )


async def test_sandboxes_of_episodes_come_and_go(brokers: Sites) -> None:
    async with brokers() as at:
        run, _ = at.run()
        run.start_orchestrator(ip="10.1.1.1")
        one, other = PodSandboxes(access(at, run)), PodSandboxes(access(at, run))
        makes = [asyncio.create_task(provider.create(SPEC, "agent")) for provider in (one, one, other)]
        odd = asyncio.create_task(one.create(SPEC, "an odd/key"))
        await until(lambda: len(run.sandboxes()) == 3, PATIENCE_S)
        run.up(ip="10.2.2.2")
        first, again, of_other = await asyncio.gather(*makes)
        assert first is again is not of_other
        assert (first.key, first.gateway) == ("agent", "http://10.1.1.1:8100")
        assert (await odd).key == "an odd/key"
        assert await one.list() == ["agent", "an odd/key"]
        await one.destroy("agent")
        assert await one.list() == ["an odd/key"]
        assert first.gone.result() is None
        await one.destroy("agent")
        await one.close()
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        await other.close()
        await until(lambda: not run.sandboxes(), PATIENCE_S)


async def test_a_worker_that_is_killed_leaves_no_pod(brokers: Sites) -> None:
    async with brokers() as at:
        run, _ = at.run()
        run.start_orchestrator()
        environment = EnvironmentConfig(
            name="agent",
            type="import:echorl_testing.sandboxes.environment:agent",
            args={"marks": "/nowhere"},
            workers=1,
        )
        key = BrokerKey(run.uid, run.key)
        background = Background()
        pool = WorkerPool(WorkerSpec(environment, [SUPPORT], sandboxes=config(at, run), broker=key), background)
        other = PodSandboxes(access(at, run))
        try:
            await pool.start()
            stays = asyncio.create_task(other.create(SPEC, "of another process"))
            worker = await pool.lease()
            limits = {"max_turns": 1, "timeout_s": 600.0, "max_model_len": 64}
            told = {"task": {"key": 0}, "base_url": "http://x", "session": "s", "model": "m", "limits": limits}
            episode = asyncio.create_task(worker.call("run", episode="e", **told))
            await until(lambda: len(run.sandboxes()) == 2, PATIENCE_S)
            os.kill(worker.pid, signal.SIGKILL)
            await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
            with pytest.raises(EpisodeError, match="died"):
                await episode
            run.up()
            assert (await stays).key == "of another process"
        finally:
            await background.close()
            await pool.close()
            await other.close()


async def test_what_is_lost_is_told_by_whose_doing_and_leaves_nothing(brokers: Sites) -> None:
    async with brokers() as at:
        run, _ = at.run()
        run.start_orchestrator()
        provider = PodSandboxes(access(at, run))
        making = asyncio.create_task(provider.create(SPEC, "a"))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        name = run.sandboxes()[0]["metadata"]["name"]
        run.play(name, {"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"})
        with pytest.raises(SandboxError, match="sandbox a: it outlived its time: too long") as caught:
            await making
        assert caught.value.loss is SandboxLoss.EXPIRED
        await until(lambda: not run.sandboxes(), PATIENCE_S)
        # Somebody cancels: what was made on the way goes.
        making = asyncio.create_task(provider.create(SPEC, "b"))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        await provider.destroy("b")
        with pytest.raises(SandboxError, match="destroyed while it was made"):
            await making
        await until(lambda: not run.sandboxes(), PATIENCE_S)
        await provider.close()


async def test_one_that_does_not_answer_any_more_says_what_its_pod_says(brokers: Sites) -> None:
    async with brokers() as at:
        run, _ = at.run()
        run.start_orchestrator()
        provider = PodSandboxes(access(at, run), Patience(daemon_s=0.1))
        making = asyncio.create_task(provider.create(SPEC, "a"))
        await until(lambda: len(run.sandboxes()) == 1, PATIENCE_S)
        # Nobody listens at the daemon's port here.
        run.up(ip="127.0.0.1")
        sandbox = await making
        name = run.sandboxes()[0]["metadata"]["name"]
        run.play(name, {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."})
        with pytest.raises(SandboxError, match="Evicted: The node was low on") as caught:
            await sandbox.read("/x")
        assert caught.value.loss is SandboxLoss.EVICTED
        await provider.close()


async def test_there_is_no_broker_or_no_room_or_no_right(brokers: Sites) -> None:
    nowhere = Access(f"http://127.0.0.1:{free_port()}/runs/n/one", "u", "k")
    provider = PodSandboxes(nowhere, Patience(broker_s=0.3))
    with pytest.raises(SandboxError, match="the broker of sandboxes does not answer: ClientConnectorError"):
        await provider.check()
    await provider.close()
    async with brokers() as at:
        run, _ = at.run(concurrency=1)
        run.start_orchestrator()
        impatient = PodSandboxes(access(at, run), Patience(room_s=0.5))
        with pytest.raises(SandboxError, match=r"not ready after 0.5 s: its pod waits for a node") as caught:
            await impatient.create(SPEC, "a")
        assert caught.value.loss is SandboxLoss.REFUSED
        await impatient.close()
        asked = config(at, run)
        await Lending(asked, None, lambda _: None, BrokerKey(run.uid, run.key)).try_out()
        with pytest.raises(SandboxError, match="there is no such run here, or this is not its key"):
            await Lending(asked, None, lambda _: None, BrokerKey(run.uid, "wrong")).try_out()
