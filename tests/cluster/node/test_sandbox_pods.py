"""Sandboxes as real pods: the broker, the daemon and the orchestrator's provider, with nothing played but the run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from echorl_orchestrator.sandboxes.contract import Command, Ended, SandboxError, SandboxLimits, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.pod.provider import Access, PodSandboxes
from echorl_testing.cluster import images
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.sandboxes.broker import PlayedRun, Site, Sites
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 180.0
WARM = {"echorl.dev/sandbox-warm", "echorl.dev/sandbox-claim"}
BOUNDED = SandboxSpec(images.BUSYBOX, "/tmp/task", limits=SandboxLimits(0.5, 128 << 20, 64 << 20, processes=64))
SPEC = SandboxSpec(images.BUSYBOX, "/tmp/task", limits=SandboxLimits(cpu=0.5, memory_bytes=128 << 20))


@pytest.fixture
def settings(control_plane: Cluster, real_node: str) -> dict[str, str]:
    """Of a broker whose daemon the node has."""
    daemon = images.sandbox_daemon(Binaries().path("sandbox-daemon"))
    control_plane.node.import_image(daemon)
    return {"daemonImage": daemon.name, "imagePullPolicy": "Never"}


@asynccontextmanager
async def sandboxes_of(at: Site, **sandboxes: Any) -> AsyncIterator[tuple[PlayedRun, PodSandboxes]]:
    """A run with its orchestrator's provider, which is closed afterwards."""
    run, _ = at.run(**sandboxes)
    run.start_orchestrator()
    provider = PodSandboxes(Access(f"{at.url}/runs/{run.namespace}/{run.name}", run.uid, run.key))
    try:
        yield run, provider
    finally:
        await provider.close()


async def nothing_is_left(run: PlayedRun) -> None:
    await until(lambda: not run.sandboxes(), PATIENCE_S)


async def test_an_agent_works_in_a_pod(real_node: str, settings: dict[str, str], brokers: Sites) -> None:
    async with brokers(settings) as at:
        async with sandboxes_of(at) as (run, provider):
            sandbox = await provider.create(SPEC, "agent")
            (pod,) = run.sandboxes()
            assert pod["spec"]["nodeName"] == real_node
            await sandbox.write("/tmp/task/note", b"hello")
            looks = "id -u; pwd; cat note; cat /etc/resolv.conf; env; ls /var/run/secrets; hostname"
            await sandbox.start(Command(["sh", "-c", looks]), "looks")
            ended = await sandbox.wait("looks", PATIENCE_S)
            said = (await sandbox.output("looks")).decode()
            assert ended is not None, said
            assert said.startswith("1000\n/tmp/task\nhello"), said
            assert "KUBERNETES" not in said
            assert run.key not in said
            assert "nameserver 127.0.0.1" in said
            assert said.endswith("sandbox\n")
            assert await sandbox.read("/tmp/task/note") == b"hello"
            await sandbox.start(Command(["sh", "-c", "(sleep 600 &) ; sleep 600"]), "sleeps")
            await sandbox.kill("sleeps")
            await provider.destroy("agent")
            await until(lambda: not run.sandboxes(), PATIENCE_S)
            with pytest.raises(SandboxError, match="ErrImageNeverPull") as caught:
                await provider.create(SandboxSpec("echorl.test/nothing:1", "/tmp"), "no image")
            assert caught.value.loss is SandboxLoss.IMAGE
            await has_an_image_in_a_folder_or_says_why(provider)
            await is_told_that_its_time_is_over(provider)
        await nothing_is_left(run)


async def test_a_warm_pod_is_claimed_once_and_another_takes_its_place(settings: dict[str, str], brokers: Sites) -> None:
    async with brokers(settings) as at:
        async with sandboxes_of(at, warmReplicas=1) as (run, provider):

            def warm() -> set[str]:
                pods = [pod["metadata"] for pod in run.sandboxes() if is_ready(pod)]
                return {meta["uid"] for meta in pods if meta["labels"].keys() & WARM == {"echorl.dev/sandbox-warm"}}

            await provider.create(BOUNDED, "first")
            await until(lambda: len(warm()) == 1, PATIENCE_S)
            (kept,) = warm()
            second = await provider.create(BOUNDED, "second")
            claimed = {pod["metadata"]["uid"]: pod for pod in run.sandboxes()}[kept]
            assert "echorl.dev/sandbox-claim" in claimed["metadata"]["labels"]
            await second.start(Command(["sh", "-c", "set -- /proc/[0-9]*; echo $#"]), "counts")
            assert await second.wait("counts", PATIENCE_S) is not None
            assert await second.output("counts") == b"3\n", "the daemon, a guard, and who counts"
            await until(lambda: len(warm() - {kept}) == 1, PATIENCE_S)
        run.phase("Succeeded")
        await nothing_is_left(run)


async def test_a_command_that_uses_up_its_pods_memory_ends_alone(settings: dict[str, str], brokers: Sites) -> None:
    async with brokers(settings) as at:
        async with sandboxes_of(at) as (run, provider):
            sandbox = await provider.create(BOUNDED, "agent")
            await sandbox.start(Command(["tail", "/dev/zero"]), "grows")
            ended = await sandbox.wait("grows", PATIENCE_S)
            assert ended is not None
            assert (ended.code, ended.killed, ended.out_of_memory) == (137, False, True)
            await sandbox.start(Command(["echo", "still here"]), "after")
            assert await sandbox.wait("after", PATIENCE_S) == Ended(0)
            (container,) = run.sandboxes()[0]["status"]["containerStatuses"]
            assert (container["restartCount"], list(container["state"])) == (0, ["running"])
        await nothing_is_left(run)


@pytest.mark.campaign
async def test_who_fills_the_disk_is_evicted_for_it(settings: dict[str, str], brokers: Sites) -> None:
    """In the campaign: the kubelet looks at disks once or twice a minute."""
    async with brokers(settings) as at:
        async with sandboxes_of(at) as (run, provider):
            for key, place in (("layer", "/tmp/task/big"), ("home", "/.echorl-files/home/big")):
                sandbox = await provider.create(BOUNDED, key)
                fills = f"dd if=/dev/zero of={place} bs=1M count=200; sleep 1000"
                await sandbox.start(Command(["sh", "-c", fills]), "fills")
                with pytest.raises(SandboxError) as caught:
                    await sandbox.wait("fills", PATIENCE_S)
                assert caught.value.loss is SandboxLoss.OVERUSED, caught.value
                assert "evicted for what it wrote" in caught.value.message
                await provider.destroy(key)
        await nothing_is_left(run)


@pytest.mark.campaign
async def test_a_fork_bomb_in_a_pod_gets_nothing(settings: dict[str, str], brokers: Sites) -> None:
    """In the campaign: on a busy machine the daemon may be starved beside it for longer than an answer may take."""
    async with brokers(settings) as at:
        async with sandboxes_of(at) as (run, provider):
            sandbox = await provider.create(BOUNDED, "agent")
            await sandbox.start(Command(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000"]), "bomb")
            ended = await sandbox.wait("bomb", PATIENCE_S)
            assert ended is not None
            assert (ended.code, ended.killed, ended.out_of_processes) == (137, False, True)
            await sandbox.start(Command(["sh", "-c", "set -- /proc/[0-9]*; echo $#"]), "counts")
            assert await sandbox.wait("counts", PATIENCE_S) is not None
            assert await sandbox.output("counts") == b"3\n", "the daemon, a guard, and who counts"
        await nothing_is_left(run)


async def has_an_image_in_a_folder_or_says_why(provider: PodSandboxes) -> None:
    """Debian's containerd, 1.6, has no image volumes; one from 2.1 on has."""
    why: SandboxError | None = None
    try:
        sandbox = await provider.create(replace(SPEC, volumes={"/opt/agent": images.BUSYBOX}), "volume")
    except SandboxError as error:
        why = error
    if why is not None:
        assert why.loss is SandboxLoss.START
        assert "CreateContainerError: failed to generate container" in why.message
        return
    await sandbox.start(Command(["/opt/agent/bin/echo", "installed"]), "agent")
    assert await sandbox.wait("agent", PATIENCE_S) == Ended(0)


async def is_told_that_its_time_is_over(provider: PodSandboxes) -> None:
    async def used() -> None:
        short = await provider.create(SandboxSpec(images.BUSYBOX, "/tmp", ttl_s=15.0), "short")
        await short.start(Command(["sleep", "600"]), "sleeps")
        await short.wait("sleeps", PATIENCE_S)

    with pytest.raises(SandboxError) as caught:
        await used()
    assert caught.value.loss is SandboxLoss.EXPIRED, caught.value
