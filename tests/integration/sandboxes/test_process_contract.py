"""Every method of the contract, by real sandboxes of this machine."""

import asyncio
import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import (
    Command,
    Ended,
    Sandbox,
    SandboxError,
    Sandboxes,
    SandboxLimits,
    SandboxLoss,
    SandboxSpec,
)
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_orchestrator.sandboxes.process.sandbox import OUTPUT_CAP_BYTES
from echorl_testing.sandboxes.images import small_image
from echorl_testing.sandboxes.running import ran, started

HOST = SandboxSpec("host", "/task")


async def test_a_command_says_how_it_ended_and_what_it_wrote(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    assert isinstance(sandboxes, Sandboxes)
    assert isinstance(sandbox, Sandbox)

    assert await ran(sandbox, "echo out; echo err >&2; exit 3") == (Ended(3), "out\nerr\n")
    assert await ran(sandbox, "kill -9 $$") == (Ended(137), "")
    assert await ran(sandbox, "pwd; id -u; echo $HOME") == (Ended(0), "/task\n1000\n/home/agent\n")
    assert await ran(sandbox, "id -u; echo $HOME", root=True) == (Ended(0), "0\n/root\n")


async def test_a_command_has_its_environment_its_input_and_its_folder(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")

    told = Command(["sh", "-c", "env | sort; pwd; cat"], {"GREETING": "a = b"}, "/tmp", b"\0given" * 100_000)
    await sandbox.start(told, "told")
    assert await sandbox.wait("told", 30) == Ended(0)
    text = (await sandbox.output("told", limit=1 << 22)).decode()
    names, _, rest = text.partition("/tmp\n\0")
    assert "GREETING=a = b\n" in names
    given = {"GREETING", "HOME", "LANG", "PATH", "TMPDIR"}
    assert {line.partition("=")[0] for line in names.splitlines()} - {"PWD"} == given
    assert rest.count("given") == 100_000


async def test_starting_and_creating_are_idempotent_by_key(sandboxes: ProcessSandboxes) -> None:
    first, second = await asyncio.gather(sandboxes.create(HOST, "one"), sandboxes.create(HOST, "one"))
    assert first is second
    assert await sandboxes.list() == ["one"]
    append = Command(["sh", "-c", "echo again >> /task/times"])
    await first.start(append, "append")
    await first.start(append, "append")
    assert await first.wait("append", 30) == Ended(0)
    await first.start(append, "append")
    assert await first.wait("append", 30) == Ended(0)
    assert await first.read("/task/times") == b"again\n"

    await sandboxes.destroy("one")
    await sandboxes.destroy("one")
    await sandboxes.destroy("never made")
    assert await sandboxes.list() == []
    clean = await sandboxes.create(HOST, "one")
    assert await ran(clean, "ls /task") == (Ended(0), "")


async def test_waiting_has_its_time(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    with pytest.raises(KeyError):
        await sandbox.wait("never started", 1)

    await started(sandbox, "echo begun; read line < /task/pipe || sleep 1000", "long", "begun")
    assert await sandbox.wait("long", 0.05) is None
    await sandbox.kill("long")
    assert await sandbox.wait("long", 0) == Ended(137, killed=True)
    await sandbox.kill("long")


async def test_killing_ends_whatever_a_command_started_and_nothing_else(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    spread = "setsid sh -c 'while :; do echo $0 >> /task/alive; sleep 0.02; done' & (setsid sleep 1000 &) ; "
    await started(sandbox, "echo begun; sleep 1000", "other", "begun")
    await started(sandbox, f"{spread} echo begun; sleep 1000", "spread", "begun")
    while not (await ran(sandbox, "cat /task/alive"))[1]:
        pass

    await sandbox.kill("spread")

    written = await sandbox.read("/task/alive")
    assert (await ran(sandbox, "sleep 0.2; cat /task/alive"))[1].encode() == written
    assert await sandbox.wait("other", 0) is None


async def test_what_a_command_leaves_behind_ends_with_it(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    loop = "while :; do echo x >> /task/alive; sleep 0.02; done"

    assert (await ran(sandbox, f"setsid sh -c '{loop}' > /dev/null 2>&1 & sleep 0.2"))[0] == Ended(0)

    written = await sandbox.read("/task/alive")
    assert written
    assert (await ran(sandbox, "sleep 0.2; cat /task/alive"))[1].encode() == written


async def test_output_is_read_by_offset_and_capped(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    await sandbox.start(Command(["sh", "-c", "printf start; head -c 100000000 /dev/zero; printf end"]), "much")
    assert await sandbox.wait("much", 60) == Ended(0)
    assert await sandbox.output("much", 0, 5) == b"start"
    assert await sandbox.output("much", 3, 4) == b"rt\0\0"
    assert len(await sandbox.output("much", OUTPUT_CAP_BYTES - 10)) == 10
    assert await sandbox.output("much", OUTPUT_CAP_BYTES) == b""
    with pytest.raises(KeyError):
        await sandbox.output("never started")


async def test_files_go_in_and_out_whole(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(HOST, "one")
    data = os.urandom(9 << 20)
    await sandbox.write("/task/deep/down/data", data, mode=0o750)
    assert await sandbox.read("/task/deep/down/data") == data
    said = (
        await ran(sandbox, "sha256sum /task/deep/down/data; stat -c %a /task/deep/down/data; ls -A /task/deep/down")
    )[1]
    assert said.split() == [hashlib.sha256(data).hexdigest(), "/task/deep/down/data", "750", "data"]
    await sandbox.write("/task/deep/down/data", b"new")
    assert await sandbox.read("/task/deep/down/data") == b"new"

    for path in ("/task/deep", "/task/none", "/task/deep/down/data/below"):
        with pytest.raises(OSError, match=path):
            await sandbox.read(path)
    with pytest.raises(OSError, match="longer than 2 bytes"):
        await sandbox.read("/task/deep/down/data", limit=2)
    for path in ("/task/deep", "/task/deep/", "relative"):
        with pytest.raises(OSError, match=r"directory|folder|absolute"):
            await sandbox.write(path, b"")


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
    sandbox = await sandboxes.create(SandboxSpec("host", "/task", ttl_s=1.0), "one")
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
