"""The daemon of pods' sandboxes, as process 1 of namespaces of this machine, and its client."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import Command, Ended, SandboxError, SandboxLoss
from echorl_orchestrator.sandboxes.pod.sandbox import PodSandbox
from echorl_testing.sandboxes.daemons import Daemon, Daemons, client
from echorl_testing.sandboxes.processes import alive, descendants
from echorl_testing.sandboxes.running import ran, started


@pytest.fixture
async def daemon(daemons: Daemons) -> Daemon:
    return await daemons.start()


@pytest.fixture
async def sandbox(daemon: Daemon) -> AsyncIterator[PodSandbox]:
    made = client(daemon, within_s=1.0)
    yield made
    await made.close()


async def test_a_command_has_what_the_daemon_gives_and_nothing_of_its_own(sandbox: PodSandbox) -> None:
    ended, said = await ran(sandbox, "env | sort")
    assert ended == Ended(0)
    assert said.splitlines() == [
        "HOME=/var/echorl/home",
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PWD=/task",
        "TMPDIR=/tmp",
    ]
    assert await ran(sandbox, "id -u; touch $HOME/made; exit 3", root=True) == (Ended(3), "1000\n")
    assert (await ran(sandbox, "ls -l /proc/self/fd | wc -l; ls -A /var/echorl"))[1] == "5\nhome\n"


async def test_its_user_may_be_the_root_of_a_user_namespace(daemons: Daemons) -> None:
    daemons.user = 0
    daemon = await daemons.start()
    sandbox = client(daemon)
    before = alive(descendants(daemon.process.pid))
    ended, said = await ran(sandbox, "cat /proc/1/environ", root=True)
    assert ended.code != 0, said
    await started(sandbox, "(setsid sleep 1000 &); echo begun; sleep 1000", "spread", "begun")
    await sandbox.kill("spread")
    assert alive(descendants(daemon.process.pid)) == before
    assert await ran(sandbox, "id -u; kill -9 1; kill -15 1") == (Ended(0), "0\n")
    await sandbox.close()


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (Command(["no such program"]), 127, "no such program"),
        (Command(["/task/none"]), 127, "no such file"),
        (Command(["/etc/passwd"]), 126, "permission denied"),
        (Command(["true"], workdir="/nowhere"), 127, "/nowhere"),
        (Command(["tool"], {"PATH": "/opt/tools:/bin"}), 0, "worked"),
        (Command(["./tool"], workdir="/opt/tools"), 0, "worked"),
    ],
)
async def test_a_program_is_found_as_a_shell_finds_it(
    sandbox: PodSandbox, command: Command, code: int, told: str
) -> None:
    await sandbox.write("/opt/tools/tool", b"#!/bin/sh\necho worked\n", mode=0o755)
    await sandbox.start(command, "one")
    assert await sandbox.wait("one", 30) == Ended(code)
    assert told in (await sandbox.output("one")).decode()


async def test_keys_are_any_words(sandbox: PodSandbox) -> None:
    for key in ("..", ".", "a/b", "ü %2F", "a?b#c", " "):
        with pytest.raises(KeyError):
            await sandbox.kill(key)
        await sandbox.start(Command(["echo", key]), key)
        assert await sandbox.wait(key, 30) == Ended(0)
        assert (await sandbox.output(key)).decode() == f"{key}\n"


async def test_what_cannot_be_run_is_refused_with_words(sandbox: PodSandbox) -> None:
    for command, told in (
        (Command([]), "argv"),
        (Command(["true"], workdir="here"), "workdir"),
        (Command(["a\0b"]), "no further command can be started: .*invalid"),
        (Command(["true"] * 1_000_000), "argument list too long"),
    ):
        with pytest.raises(OSError, match=told):
            await sandbox.start(command, "one")
        with pytest.raises(KeyError):
            await sandbox.wait("one", 0)
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")


async def test_an_answer_that_was_lost_is_asked_for_again(daemon: Daemon) -> None:
    host, port = daemon.address.removeprefix("http://").split(":")
    lost: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(host, int(port))
        asked = await reader.read(1 << 16)
        to_there.write(asked)
        await to_there.drain()
        answered = await there.read(1 << 16)
        if asked not in lost:
            lost.append(asked)
        else:
            writer.write(answered)
            await writer.drain()
        to_there.close()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    relayed = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sandbox = client(Daemon(daemon.process, relayed, daemon.token))
    await sandbox.start(Command(["sh", "-c", "echo again >> /task/times"]), "append")
    assert await sandbox.wait("append", 30) == Ended(0)
    await sandbox.kill("append")
    assert await sandbox.read("/task/times") == b"again\n"
    assert len(lost) >= 3
    await sandbox.close()
    server.close()


async def test_a_sandbox_that_was_started_again_is_lost(daemons: Daemons, daemon: Daemon, sandbox: PodSandbox) -> None:
    assert await ran(sandbox, "true") == (Ended(0), "")
    await daemon.kill()
    again = await daemons.start(listen=daemon.address.removeprefix("http://"), token=daemon.token)
    assert again.address == daemon.address
    with pytest.raises(SandboxError, match="started again") as lost:
        await sandbox.read("/etc/hosts")
    assert lost.value.loss is SandboxLoss.LOST
    assert sandbox.gone.result() is not None
    with pytest.raises(SandboxError, match="started again"):
        await sandbox.start(Command(["true"]), "one")
    fresh = client(again)
    assert await ran(fresh, "echo fresh") == (Ended(0), "fresh\n")
    await fresh.close()


async def test_a_sandbox_that_does_not_answer_is_lost_by_what_is_known_of_its_end(daemon: Daemon) -> None:
    overused = SandboxError(SandboxLoss.OVERUSED, "its pod was ended for its memory")
    for known, loss in ((None, SandboxLoss.LOST), (overused, SandboxLoss.OVERUSED)):
        sandbox = client(daemon, loss=known, within_s=0.2)
        await daemon.kill()
        for _ in range(2):
            with pytest.raises(SandboxError) as lost:
                await sandbox.wait("one", 60)
            assert lost.value.loss is loss
        await sandbox.close()


async def test_one_that_was_destroyed_says_so(sandbox: PodSandbox) -> None:
    await started(sandbox, "echo begun; sleep 1000", "long", "begun")
    waiting = asyncio.create_task(sandbox.wait("long", 60))
    await sandbox.output("long")
    await sandbox.close()
    assert await sandbox.gone is None
    with pytest.raises(SandboxError, match="was destroyed"):
        await waiting
    with pytest.raises(SandboxError, match="was destroyed"):
        await sandbox.wait("one", 1)


async def test_another_token_is_no_sandbox_of_ours(daemon: Daemon) -> None:
    stranger = client(Daemon(daemon.process, daemon.address, "another"))
    with pytest.raises(SandboxError, match="another sandbox answers"):
        await stranger.start(Command(["true"]), "one")
    await stranger.close()


async def test_what_is_no_daemon_is_asked_again_and_then_the_sandbox_is_lost(daemon: Daemon) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        status = "200 OK" if asked % 2 else "503 Service Unavailable"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    between = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sandbox = client(Daemon(daemon.process, between, daemon.token), within_s=2.0)
    with pytest.raises(SandboxError, match=r"no answer within 2 s: HTTP ") as lost:
        await sandbox.wait("one", 60)
    assert lost.value.loss is SandboxLoss.LOST
    assert asked > 2
    await sandbox.close()
    server.close()


async def test_it_ends_by_itself_after_its_time_with_all_inside(daemons: Daemons) -> None:
    daemon = await daemons.start(ttl_s=3.0)
    sandbox = client(daemon, within_s=0.1)
    await sandbox.start(Command(["sleep", "1000"]), "long")
    below = descendants(daemon.process.pid)
    with pytest.raises(SandboxError):
        await sandbox.wait("long", 60)
    assert await daemon.process.wait() == 124
    assert not alive(below)
    await sandbox.close()


async def test_it_writes_nowhere_but_where_it_may(daemons: Daemons) -> None:
    with pytest.raises(RuntimeError, match=r"1: .*/usr/new: (read-only|permission)"):
        await daemons.start(workdir="/usr/new")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"--token-sha256": "abc"}, "--token-sha256: accepted are 64 hex digits"),
        ({"--ttl-s": "0"}, "--ttl-s: found 0, accepted are seconds"),
        ({"--ttl-s": "NaN"}, "--ttl-s: found NaN, accepted are seconds"),
        ({"--processes": "0"}, "--processes: found 0, accepted is a number above 0"),
        ({"--workdir": "task"}, '--workdir: found "task", accepted is an absolute folder'),
        ({"--files": ""}, '--files: found "", accepted is an absolute folder'),
        ({"--listen": ""}, "--listen: accepted is HOST:PORT"),
        ({"--more": "x"}, "flag provided but not defined"),
        ({}, "accepted is 1: it ends all others"),
    ],
)
def test_arguments_that_cannot_be_used_are_told(daemon_program: Path, change: dict[str, str], told: str) -> None:
    flags = {
        "--listen": ":0",
        "--token-sha256": "0" * 64,
        "--workdir": "/",
        "--ttl-s": "1",
        "--files": "/tmp",
        "--processes": "9",
    } | change
    line = [str(daemon_program), "serve", *(word for pair in flags.items() for word in pair)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert "goroutine" not in done.stderr


def test_it_tells_its_usage_and_installs_itself(daemon_program: Path, tmp_path: Path) -> None:
    for line, code in ((["--help"], 0), (["--version"], 0), ([], 2), (["install"], 2), (["install", "/none/x"], 1)):
        done = subprocess.run([daemon_program, *line], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code
        assert done.stdout or done.stderr
    copied = tmp_path / "daemon"
    copied.write_text("older")
    subprocess.run([daemon_program, "install", copied], check=True, timeout=30)
    assert copied.read_bytes() == daemon_program.read_bytes()
    assert os.access(copied, os.X_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["daemon"]


async def test_many_commands_at_once(sandbox: PodSandbox) -> None:
    async def one(number: int) -> None:
        assert await ran(sandbox, f"echo {number}; sleep 0.1") == (Ended(0), f"{number}\n")

    await asyncio.gather(*(one(number) for number in range(40)))


async def test_what_a_command_detached_goes_on_until_its_own_end(sandbox: PodSandbox) -> None:
    detached = "(setsid sh -c 'while :; do echo x >> /task/alive; sleep 0.01; done' &); echo begun; sleep 1000"
    await started(sandbox, detached, "server", "begun")
    assert await ran(sandbox, "echo beside") == (Ended(0), "beside\n")
    await started(sandbox, "echo begun; sleep 1000", "other", "begun")
    await sandbox.kill("other")
    assert await sandbox.wait("server", 0) is None
    count = "a=$(wc -c < /task/alive); while [ $(wc -c < /task/alive) = $a ]; do sleep 0.01; done; echo goes on"
    assert await ran(sandbox, count, within_s=10) == (Ended(0), "goes on\n")
