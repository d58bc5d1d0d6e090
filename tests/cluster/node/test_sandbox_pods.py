"""Sandboxes as real pods: the broker, the daemon and the orchestrator's provider, with nothing played but the run."""

import pytest

from echorl_orchestrator.sandboxes.contract import Command, SandboxError, SandboxLimits, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.pod.provider import Access, PodSandboxes
from echorl_testing.cluster import images
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.sandboxes.broker import Sites
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 180.0
SPEC = SandboxSpec(images.BUSYBOX, "/tmp/task", limits=SandboxLimits(cpu=0.5, memory_bytes=128 << 20))


async def test_an_agent_works_in_a_pod(control_plane: Cluster, real_node: str, brokers: Sites) -> None:
    daemon = images.sandbox_daemon(Binaries().path("sandbox-daemon"))
    control_plane.node.import_image(daemon)
    async with brokers({"daemonImage": daemon.name, "imagePullPolicy": "Never"}) as at:
        run, _ = at.run()
        run.start_orchestrator()
        provider = PodSandboxes(Access(f"{at.url}/runs/{run.namespace}/{run.name}", run.uid, run.key))
        try:
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
            await is_told_that_its_time_is_over(provider)
        finally:
            await provider.close()
        await until(lambda: not run.sandboxes(), PATIENCE_S)


async def is_told_that_its_time_is_over(provider: PodSandboxes) -> None:
    short = await provider.create(SandboxSpec(images.BUSYBOX, "/tmp", ttl_s=15.0), "short")
    await short.start(Command(["sleep", "600"]), "sleeps")
    with pytest.raises(SandboxError) as caught:
        await short.wait("sleeps", PATIENCE_S)
    assert caught.value.loss is SandboxLoss.EXPIRED, caught.value
