"""What runs inside gets nothing that is not its own, whatever it tries."""

import asyncio
import io
import os
import socket
import tarfile
import time
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
from echorl_orchestrator.sandboxes.process.images import Images
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.images import small_image
from echorl_testing.sandboxes.running import ran, started

SMALL = SandboxLimits(memory_bytes=256 << 20, disk_bytes=64 << 20, processes=40)
SPEC = SandboxSpec("host", "/task", limits=SMALL)
EITHER = pytest.mark.parametrize("root", [False, True])


@EITHER
async def test_it_writes_to_nothing_of_the_machine(sandboxes: ProcessSandboxes, root: bool) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    for path in ("/usr/new", "/usr/bin/new", "/etc/alternatives/new", "/dev/new", "/proc/sys/kernel/core_pattern"):
        ended, said = await ran(sandbox, f"echo x > {path}", root=root)
        assert ended.code != 0, (path, said)
    for attempt in (
        "mount -t tmpfs x /mnt",
        "mount -o remount,rw /usr",
        "umount /usr",
        "mknod /task/d b 254 0",
        "unshare -U true",
        "unshare -n true",
    ):
        ended, said = await ran(sandbox, f"mkdir -p /mnt; {attempt}", root=root)
        assert ended.code != 0, (attempt, said)


@EITHER
async def test_it_reads_nothing_of_the_machine(sandboxes: ProcessSandboxes, tmp_path: Path, root: bool) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    sandbox = await sandboxes.create(SPEC, "one")
    for path in (str(secret), "/etc/shadow", "/var/tmp", "/sys/kernel", "/proc/kcore", "/proc/1/root/../etc/shadow"):
        ended, said = await ran(sandbox, f"cat {path}/* {path}", root=root)
        assert ended.code != 0, (path, said)
    assert await ran(sandbox, "ls /home /tmp", root=root) == (Ended(0), "/home:\nagent\n\n/tmp:\n")
    ended, said = await ran(sandbox, "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sort -u", root=root)
    assert {line.partition("=")[0] for line in said.splitlines()} <= {"PATH", "HOME", "LANG", "TMPDIR", "PWD"}


async def test_it_sees_no_other_process_and_no_other_sandbox(sandboxes: ProcessSandboxes) -> None:
    one, other = await sandboxes.create(SPEC, "one"), await sandboxes.create(SPEC, "other")
    await other.write("/task/secret", b"secret")
    await started(one, "echo begun; sleep 1000", "victim", "begun")
    await started(other, "echo begun; sleep 1000", "victim", "begun")

    for root in (False, True):
        said = (await ran(one, "ls -d /proc/[0-9]* | wc -l; ls /task; cat /proc/[0-9]*/comm", root=root))[1]
        assert "sleep" not in said
        assert "secret" not in said
        assert int(said.split()[0]) <= 8
        await ran(one, "kill -9 -1", root=root)
        tried = "import os\nfor n in range(3, 200000):\n  try: os.kill(n, 9)\n  except OSError: pass"
        await one.start(Command(["python3", "-c", tried], root=root), f"kill {root}")
        assert await one.wait(f"kill {root}", 60) is not None
    trace = "import ctypes, sys\nsys.exit(0 if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0) == 0 else 1)"
    await one.start(Command(["python3", "-c", trace, str(os.getpid())]), "trace")
    assert await one.wait("trace", 30) == Ended(1)
    # Whoever stops the first process of its own command waits for itself, and can be killed all the same.
    await one.start(Command(["python3", "-c", trace, "1"]), "own")
    await one.wait("own", 0.5)
    await one.kill("own")
    assert await one.wait("victim", 0) is None
    assert await other.wait("victim", 0) is None


async def test_it_forks_a_thousand_processes(sandboxes: ProcessSandboxes) -> None:
    sandbox, other = await sandboxes.create(SPEC, "one"), await sandboxes.create(SPEC, "other")
    fork = "import os, time\nfor n in range(1000):\n  try:\n    if os.fork() == 0:\n      time.sleep(1000)\n"
    fork += "  except OSError:\n    print('refused at', n, flush=True)\n    time.sleep(1000)\n"
    await sandbox.start(Command(["python3", "-c", fork]), "forks")
    while not (said := (await sandbox.output("forks")).decode()):
        assert await sandbox.wait("forks", 0.02) is None
    assert 10 < int(said.split()[-1]) <= SMALL.processes
    assert await ran(other, "echo unharmed") == (Ended(0), "unharmed\n")
    await sandbox.kill("forks")
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")

    # Without a pipe, whose second process may not be there yet.
    count = "set -- /proc/[0-9]*; echo $#"
    few = await ran(sandbox, count)
    await sandbox.start(Command(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000"]), "bomb")
    await sandbox.wait("bomb", 1)
    await sandbox.kill("bomb")
    assert await ran(sandbox, count) == few


async def test_it_fills_the_disk(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    for place in ("/task", "/tmp", "/dev/shm", "/home/agent"):
        ended, said = await ran(sandbox, f"head -c 200000000 /dev/zero > {place}/big; c=$?; rm {place}/big; exit $c")
        assert ended.code != 0
        assert "No space left on device" in said
    await ran(sandbox, "head -c 200000000 /dev/zero > /task/big")
    with pytest.raises(OSError, match="No space left"):
        await sandbox.write("/task/new", b"x" * 5_000_000)
    assert (await ran(sandbox, "ls -A /task"))[1] == "big\n"
    many = "import os\nfor n in range(10**6):\n  open(f'/task/{n}', 'w')"
    await sandbox.start(Command(["python3", "-c", many]), "files")
    assert await sandbox.wait("files", 60) == Ended(1)
    assert b"No space left on device" in await sandbox.output("files")


@pytest.mark.parametrize(
    "taking",
    [
        "import time\nx = []\nwhile True:\n  x.append(b'x' * 10**6)\n  time.sleep(0.002)",
        "import os\nfor n in range(8): os.fork()\nx = []\nfor n in range(50): x.append(b'x' * 10**6)\n"
        "import time; time.sleep(1000)",
        "import mmap\nx = mmap.mmap(-1, 2 * 10**9)\nfor n in range(0, 2 * 10**9, 4096): x[n] = 1",
    ],
    ids=["one", "many", "shared"],
)
async def test_it_takes_too_much_memory(sandboxes: ProcessSandboxes, taking: str) -> None:
    limits = SandboxLimits(memory_bytes=256 << 20, processes=400)
    sandbox = await sandboxes.create(SandboxSpec("host", "/task", limits=limits), "one")
    await started(sandbox, "echo begun; sleep 1000", "other", "begun")
    await sandbox.start(Command(["python3", "-c", taking]), "takes")
    assert await sandbox.wait("takes", 120) == Ended(137, out_of_memory=True)
    assert await sandbox.wait("other", 0) is None


async def test_it_asks_for_too_much_memory_at_once(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    ended, said = await ran(sandbox, "python3 -c 'bytearray(10**10)'")
    assert ended == Ended(1)
    assert "MemoryError" in said


async def test_it_reaches_no_network(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    assert sandbox.gateway is None
    with socket.create_server(("0.0.0.0", 0)) as served:
        port = served.getsockname()[1]
        addresses = {"127.0.0.1", *(found[4][0] for found in socket.getaddrinfo(socket.gethostname(), port))}
        for address in (*addresses, "192.0.2.1", "169.254.169.254"):
            connect = f"import socket; socket.create_connection(('{address}', {port}), 5)"
            ended, said = await ran(sandbox, f'python3 -c "{connect}"')
            assert ended == Ended(1), said
            assert "refused" in said or "unreachable" in said
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0echorl-test")
    abstract.listen()
    with abstract:
        connect = "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + 'echorl-test')"
        assert (await ran(sandbox, f'python3 -c "{connect}"'))[0] == Ended(1)


async def test_the_gateway_is_all_that_it_reaches_and_hangs_up_with_it(tmp_path: Path) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.readline())
        writer.write(b"answer\n")
        await writer.drain()
        await heard.put(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sandboxes = ProcessSandboxes(tmp_path / "gateway", ("127.0.0.1", port))
    try:
        spec = SandboxSpec("host", "/task", gateway=True)
        sandbox, grader = await sandboxes.create(spec, "one"), await sandboxes.create(SPEC, "grader")
        assert sandbox.gateway is not None
        inside = int(sandbox.gateway.removeprefix("http://127.0.0.1:"))
        call = f"import socket; s = socket.create_connection(('127.0.0.1', {inside})); s.sendall(b'asked\\n'); "
        call += "print(s.recv(100).decode(), flush=True); import time; time.sleep(1000)"
        await started(sandbox, f'python3 -c "{call}"', "call", "answer")
        assert await heard.get() == b"asked\n"
        await sandbox.kill("call")
        async with asyncio.timeout(10):
            assert await heard.get() == b""
        for other, number in ((sandbox, port), (grader, inside)):
            connect = f"import socket; socket.create_connection(('127.0.0.1', {number}), 5)"
            assert (await ran(other, f'python3 -c "{connect}"'))[0] == Ended(1)
    finally:
        await sandboxes.close()
        server.close()


async def test_links_lead_out_of_no_tree(sandboxes: ProcessSandboxes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    sandbox = await sandboxes.create(SPEC, "one")
    up = "../" * 20
    links = f"ln -s {secret} a; ln -s {up}{secret} b; ln -s {tmp_path} c; ln -s /proc/self/cwd d; mkfifo e; ln -s g g"
    assert await ran(sandbox, links) == (Ended(0), "")
    for path in ("a", "b", "c/secret", "d/a", "e", "g", f"{up}{secret}"):
        with pytest.raises(OSError, match=r"No such file|no plain file|Too many levels"):
            await sandbox.read(f"/task/{path}")
    await sandbox.write("/task/a", b"written")
    with pytest.raises(OSError, match="No such file"):
        await sandbox.write("/task/c/secret", b"written")
    await sandbox.write(f"/task/{up}{tmp_path}/secret", b"written")
    assert secret.read_text() == "secret"
    assert await sandbox.read("/task/a") == b"written"
    assert await sandbox.read(str(secret)) == b"written"


async def test_it_runs_on_after_it_was_killed(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    stubborn = (
        "import os, signal, time\n"
        "for n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except Exception: pass\n"
        "while True:\n  if os.fork() == 0: os.setsid()\n  else: os._exit(0) if os.getpid() != 2 else os.wait()\n"
        "  open('/task/alive', 'a').write('x'); time.sleep(0.01)\n"
    )
    await sandbox.start(Command(["python3", "-c", stubborn]), "stubborn")
    while "x" not in (await ran(sandbox, "cat /task/alive"))[1]:
        pass
    before = time.monotonic()
    await sandbox.kill("stubborn")
    assert time.monotonic() - before < 10
    written = await sandbox.read("/task/alive")
    assert (await ran(sandbox, "sleep 0.2; cat /task/alive"))[1].encode() == written


async def test_it_holds_no_descriptor_of_ours(sandboxes: ProcessSandboxes) -> None:
    sandbox = await sandboxes.create(SPEC, "one")
    await sandbox.start(Command(["sh", "-c", "printf x 1<> /proc/self/fd/0"], stdin=b"given"), "own input")
    ended = await sandbox.wait("own input", 30)
    assert ended is not None
    assert ended.code != 0
    for root in (False, True):
        ended, said = await ran(sandbox, "ls -l /proc/[0-9]*/fd; echo x > /proc/self/fd/0", root=root)
        assert ended.code != 0
        kinds = {line.partition(" -> ")[2].partition("[")[0].partition("/")[0] for line in said.splitlines()}
        assert "socket:" not in kinds
        assert "mount/" not in said


def _archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, to, 0o4777
    return made


async def test_an_archive_leads_nowhere_else(sandboxes: ProcessSandboxes, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    (victim / "kept").write_text("kept")
    up = "../" * 30
    climbing = [
        (_member(f"{up}{victim}/a"), b"x"),
        (_member(f"{victim}/b"), b"x"),
        (_member("link", tarfile.SYMTYPE, str(victim)), b""),
        (_member("link/c"), b"x"),
    ]
    await sandboxes.create(SandboxSpec(str(_archive(tmp_path / "climbing.tar", *climbing)), "/task"), "climbing")
    assert [path.name for path in victim.iterdir()] == ["kept"]

    for name, member in {
        "device": _member("dev/disk", tarfile.BLKTYPE),
        "hard link": _member("hard", tarfile.LNKTYPE, f"{victim}/kept"),
    }.items():
        with pytest.raises(SandboxError) as refused:
            await sandboxes.create(SandboxSpec(str(_archive(tmp_path / name, (member, b""))), "/task"), name)
        assert refused.value.loss is SandboxLoss.IMAGE
    (tmp_path / "no archive").write_bytes(b"\0nothing")
    with pytest.raises(SandboxError, match="no archive"):
        await sandboxes.create(SandboxSpec(str(tmp_path / "no archive"), "/task"), "no archive")
    assert await sandboxes.list() == ["climbing"]


def test_an_archive_that_unpacks_for_too_long_is_given_up_and_nothing_of_it_stays(tmp_path: Path) -> None:
    images = Images(tmp_path / "images", None, unpack_s=0.001)
    with pytest.raises(SandboxError, match=r"large\.tar cannot be read: it was not unpacked after 0\.001 s") as refused:
        images.tree(str(_archive(tmp_path / "large.tar", (_member("file"), b"x" * 10_000_000))))
    assert refused.value.loss is SandboxLoss.IMAGE
    assert [path for path in (tmp_path / "images").iterdir() if not path.name.endswith(".lock")] == []


async def test_a_folder_with_devices_links_and_pipes_is_a_tree_of_files(
    sandboxes: ProcessSandboxes, tmp_path: Path
) -> None:
    folder = small_image(tmp_path / "image")
    os.mkfifo(folder / "data" / "pipe")
    (folder / "data" / "out").symlink_to(tmp_path)
    if os.geteuid() == 0:
        os.mknod(folder / "data" / "disk", 0o60666, os.makedev(254, 0))
    sandbox = await sandboxes.create(SandboxSpec(str(folder), "/task"), "one")
    said = (await ran(sandbox, "ls /data; ls /data/out/"))[1]
    assert said.startswith("kept\nold\nout\n")
    assert "No such file" in said
