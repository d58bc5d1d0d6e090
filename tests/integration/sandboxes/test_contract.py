"""Methods of the contract, by whoever provides the sandboxes: namespaces of this machine, or the daemon of pods."""

import asyncio
import hashlib
import os

import pytest

from echorl_orchestrator.sandboxes.contract import Command, Ended, Sandbox, Sandboxes, SandboxSpec
from echorl_testing.sandboxes.running import ran, started

HOST = SandboxSpec("host", "/task")
OUTPUT_CAP_BYTES = 64 << 20


async def test_a_command_says_how_it_ended_and_what_it_wrote(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
    assert isinstance(either, Sandboxes)
    assert isinstance(sandbox, Sandbox)

    assert await ran(sandbox, "echo out; echo err >&2; exit 3") == (Ended(3), "out\nerr\n")
    assert await ran(sandbox, "kill -9 $$") == (Ended(137), "")
    assert await ran(sandbox, "pwd; id -u") == (Ended(0), "/task\n1000\n")


async def test_a_command_has_its_environment_its_input_and_its_folder(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")

    told = Command(["sh", "-c", "env | sort; pwd; cat"], {"GREETING": "a = b"}, "/tmp", b"\0given" * 100_000)
    await sandbox.start(told, "told")
    assert await sandbox.wait("told", 30) == Ended(0)
    text = (await sandbox.output("told", limit=1 << 22)).decode()
    names, _, rest = text.partition("/tmp\n\0")
    assert "GREETING=a = b\n" in names
    given = {"GREETING", "HOME", "LANG", "PATH", "TMPDIR"}
    assert {line.partition("=")[0] for line in names.splitlines()} - {"PWD"} == given
    assert rest.count("given") == 100_000


async def test_starting_and_creating_are_idempotent_by_key(either: Sandboxes) -> None:
    first, second = await asyncio.gather(either.create(HOST, "one"), either.create(HOST, "one"))
    assert first is second
    assert await either.list() == ["one"]
    append = Command(["sh", "-c", "echo again >> /task/times"])
    await first.start(append, "append")
    await first.start(append, "append")
    assert await first.wait("append", 30) == Ended(0)
    await first.start(append, "append")
    assert await first.wait("append", 30) == Ended(0)
    assert await first.read("/task/times") == b"again\n"

    await either.destroy("one")
    await either.destroy("one")
    await either.destroy("never made")
    assert await either.list() == []
    clean = await either.create(HOST, "one")
    assert await ran(clean, "ls /task") == (Ended(0), "")


async def test_waiting_has_its_time(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
    with pytest.raises(KeyError):
        await sandbox.wait("never started", 1)

    await started(sandbox, "echo begun; read line < /task/pipe || sleep 1000", "long", "begun")
    assert await sandbox.wait("long", 0.05) is None
    await sandbox.kill("long")
    assert await sandbox.wait("long", 0) == Ended(137, killed=True)
    await sandbox.kill("long")


async def test_killing_ends_whatever_a_command_started_and_nothing_else(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
    spread = "setsid sh -c 'while :; do echo $0 >> /task/alive; sleep 0.02; done' & (setsid sleep 1000 &) ; "
    await started(sandbox, "echo begun; sleep 1000", "other", "begun")
    await started(sandbox, f"{spread} echo begun; sleep 1000", "spread", "begun")
    while not (await ran(sandbox, "cat /task/alive 2> /dev/null"))[1]:
        pass

    await sandbox.kill("spread")

    written = await sandbox.read("/task/alive")
    assert (await ran(sandbox, "sleep 0.2; cat /task/alive"))[1].encode() == written
    assert await sandbox.wait("other", 0) is None


async def test_what_a_command_leaves_behind_ends_with_it(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
    # The kernel gives its memory back before its lock, so that it is long in ending.
    held = "fcntl.flock(lock := open('/task/lock', 'w'), 2); room = b'x' * (300 << 20); open('/task/held', 'w')"
    left = f'setsid python3 -c "import fcntl, time; {held}; time.sleep(1000)" > /dev/null 2>&1 &'

    assert (await ran(sandbox, f"{left} until [ -e /task/held ]; do sleep 0.01; done"))[0] == Ended(0)

    assert await ran(sandbox, "flock --nonblock /task/lock true") == (Ended(0), "")


async def test_output_is_read_by_offset_and_capped(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
    await sandbox.start(Command(["sh", "-c", "printf start; head -c 100000000 /dev/zero; printf end"]), "much")
    assert await sandbox.wait("much", 60) == Ended(0)
    assert await sandbox.output("much", 0, 5) == b"start"
    assert await sandbox.output("much", 3, 4) == b"rt\0\0"
    assert len(await sandbox.output("much", OUTPUT_CAP_BYTES - 10)) == 10
    assert await sandbox.output("much", OUTPUT_CAP_BYTES) == b""
    with pytest.raises(KeyError):
        await sandbox.output("never started")


async def test_files_go_in_and_out_whole(either: Sandboxes) -> None:
    sandbox = await either.create(HOST, "one")
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
