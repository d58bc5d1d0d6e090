"""Every method of the contract, by real sandboxes of this machine."""

import tarfile
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import (
    Command,
    Ended,
    SandboxError,
    SandboxLimits,
    SandboxLoss,
    SandboxSpec,
)
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.images import small_image
from echorl_testing.sandboxes.running import ran

HOST = SandboxSpec("host", "/task")


async def test_there_are_an_agent_and_root(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    assert await ran(sandbox, "id -u; echo $HOME") == (Ended(0), "1000\n/home/agent\n")
    assert await ran(sandbox, "id -u; echo $HOME", root=True) == (Ended(0), "0\n/root\n")


async def test_an_image_is_a_folder_or_an_archive_and_is_never_changed(
    sandboxes: ProcessSandboxes, tmp_path: Path
) -> None:
    folder = small_image(tmp_path / "image")
    archive = tmp_path / "image.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, ".")
    for image in (folder, archive):
        sandbox = await sandboxes.create(SandboxSpec(str(image), "/task"), f"first of {image}")
        changes = "rm -r /data/old && mkdir /data/old && touch /data/old/new && echo changed > /data/kept && rm /bin/ls"
        assert await ran(sandbox, changes) == (Ended(0), "")
        assert await ran(sandbox, "cat /data/kept; echo /data/old/*") == (Ended(0), "changed\n/data/old/new\n")

        other = await sandboxes.create(SandboxSpec(str(image), "/data"), f"second of {image}")
        assert await ran(other, "cat kept old/file; ls") == (Ended(0), "keptoldkept\nold\n")
    assert (folder / "data" / "kept").read_text() == "kept"


async def test_a_volume_is_read_only(sandboxes: ProcessSandboxes, tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho worked\n")
    (folder / "tool").chmod(0o755)
    sandbox = await sandboxes.create(SandboxSpec("host", "/task", volumes={"/opt/tools": str(folder)}), "one")
    assert await ran(sandbox, "/opt/tools/tool") == (Ended(0), "worked\n")
    assert await sandbox.read("/opt/tools/tool") == (folder / "tool").read_bytes()
    for root in (False, True):
        ended, said = await ran(sandbox, "echo x > /opt/tools/tool; rm /opt/tools/tool", root=root)
        assert ended.code != 0
        assert said.count("Read-only file system") == 2


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("/nowhere/at/all", "No such file"),
        ("python:3.11", "accepted are 'host' and the absolute path"),
        ("", "accepted"),
    ],
)
async def test_an_image_that_is_not_there(sandboxes: ProcessSandboxes, image: str, told: str) -> None:
    with pytest.raises(SandboxError, match=told) as refused:
        await sandboxes.create(SandboxSpec(image, "/task"), "one")
    assert refused.value.loss is SandboxLoss.IMAGE
    assert await sandboxes.list() == []


async def test_a_sandbox_that_outlives_its_time_says_so(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SandboxSpec("host", "/task", ttl_s=5.0), "one")
    await sandbox.start(Command(["sleep", "1000"]), "long")
    with pytest.raises(SandboxError) as lost:
        await sandbox.wait("long", 60)
    assert lost.value.loss is SandboxLoss.EXPIRED
    with pytest.raises(SandboxError):
        await sandbox.start(Command(["true"]), "another")
    with pytest.raises(SandboxError):
        await sandbox.read("/task/file")
    assert await sandboxes.list() == []
    assert (await (await sandboxes.create(HOST, "two")).read("/etc/hosts")).endswith(b"localhost\n")


async def test_limits_are_those_of_the_specification(sandboxes: ProcessSandboxes) -> None:
    limits = SandboxLimits(disk_bytes=50 << 20)
    sandbox = await sandboxes.create(SandboxSpec("host", "/task", limits=limits), "one")
    assert (await ran(sandbox, "df -B1 --output=size / | tail -1"))[1].strip() == str(50 << 20)
