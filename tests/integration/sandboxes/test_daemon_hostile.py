"""The daemon of pods' sandboxes withstands what runs beside it as the same user, and who reaches its port."""

import asyncio
import hashlib
import io
import itertools
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from echorl_orchestrator.sandboxes.contract import Command, Ended
from echorl_orchestrator.sandboxes.pod.sandbox import PodSandbox
from echorl_testing.load import stretched
from echorl_testing.sandboxes.daemons import Daemon, Daemons, client
from echorl_testing.sandboxes.processes import alive, descendants
from echorl_testing.sandboxes.running import ran, started

CAP_BYTES = 64 << 20
FROM_ONE_SIDE = 32


@pytest.fixture
async def daemon(daemons: Daemons) -> Daemon:
    return await daemons.start()


@pytest.fixture
async def sandbox(daemon: Daemon) -> AsyncIterator[PodSandbox]:
    made = client(daemon, within_s=5.0)
    yield made
    await made.close()


@pytest.fixture
async def stranger(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    """Without a token."""
    async with aiohttp.ClientSession(daemon.address) as session:
        yield session


def _running(daemon: Daemon) -> int:
    return len(alive(descendants(daemon.process.pid)))


CHAIN = """
while True:
  if os.fork() == 0: os.setsid()
  else: os._exit(0)
"""
FAST_CHAIN = """
#include <unistd.h>
int main(void) {
  for (int chain = 0; chain < 4; chain++)
    if (fork() == 0)
      for (;;)
        if (fork() != 0) _exit(0);
}
"""
HOSTILE = {
    "ignores signals": """
for n in range(1, 65):
  try: signal.signal(n, signal.SIG_IGN)
  except Exception: pass
print('begun', flush=True)
time.sleep(1000)
""",
    "detaches twice": """
if os.fork() == 0:
  os.setsid()
  if os.fork() == 0: time.sleep(1000)
  os._exit(0)
print('begun', flush=True)
time.sleep(1000)
""",
    "forks and ends, for ever": f"""
print('begun', flush=True)
if os.fork(): time.sleep(1000)
{CHAIN}
""",
    "many that fork and end": f"""
print('begun', flush=True)
for n in range(20):
  if os.fork() == 0: break
else: time.sleep(1000)
{CHAIN}
""",
    "takes orphans and hides": """
libc = ctypes.CDLL(None)
libc.prctl(36, 1)
libc.prctl(4, 0)
if os.fork() == 0:
  if os.fork() == 0: time.sleep(1000)
  os._exit(0)
print('begun', flush=True)
time.sleep(1000)
""",
    "stops whom it can": """
print('begun', flush=True)
first = os.getpid()
if os.fork() == 0:
  while True:
    os.kill(first, signal.SIGSTOP)
    time.sleep(0.001)
time.sleep(1000)
""",
    "stops its guard": """
os.kill(os.getppid(), signal.SIGSTOP)
print('begun', flush=True)
time.sleep(1000)
""",
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
async def test_killing_ends_the_whole_tree(daemon: Daemon, sandbox: PodSandbox, script: str) -> None:
    before = _running(daemon)
    await started(sandbox, "echo begun; sleep 1000", "other", "begun")
    await sandbox.start(Command(["python3", "-c", f"import ctypes, os, signal, time\n{script}"]), "hostile")
    while b"begun" not in await sandbox.output("hostile"):
        assert await sandbox.wait("hostile", 0.02) is None
    begun = time.monotonic()
    await sandbox.kill("hostile")
    assert time.monotonic() - begun < stretched(10)
    assert await sandbox.wait("hostile", 0) == Ended(137, killed=True)
    assert await sandbox.wait("other", 0.1) is None
    await sandbox.kill("other")
    assert _running(daemon) == before


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="no compiler, and Python forks too slowly to be missed by a look"
)
async def test_killing_ends_who_forks_faster_than_it_is_looked_at(daemon: Daemon, sandbox: PodSandbox) -> None:
    before = _running(daemon)
    await sandbox.write("/task/chain.c", FAST_CHAIN.encode())
    assert await ran(sandbox, "cc -O2 -o chain chain.c") == (Ended(0), "")
    many = "for n in $(seq 100); do sleep 1000 & done; echo begun; sleep 1000"  # A look takes long.
    await started(sandbox, many, "other", "begun")
    await started(sandbox, "./chain; echo begun; sleep 1000", "chain", "begun")
    await sandbox.kill("chain")
    assert await sandbox.wait("other", 0) is None
    await sandbox.kill("other")
    assert _running(daemon) == before


@pytest.mark.parametrize("number", [9, 11, 15])
async def test_who_kills_the_guards_ends_with_them(daemon: Daemon, sandbox: PodSandbox, number: int) -> None:
    before = _running(daemon)
    spread = "(setsid sh -c 'while :; do sleep 0.01; done' &); for n in 1 2 3; do sleep 1000 & done; "
    guards = "for n in /proc/[0-9]*; do grep -q sandbox-guard $n/cmdline && kill -9 ${n#/proc/}; done; "
    await sandbox.start(Command(["sh", "-c", f"{spread} {guards if number == 9 else f'kill -{number} -1'}"]), "hostile")
    ended = await sandbox.wait("hostile", 30)
    assert ended is not None
    assert not ended.killed
    assert ended.code in ((137,) if number == 9 else (0, 128 + number))
    assert _running(daemon) == before
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")


async def test_signals_do_not_reach_the_daemon_and_nobody_looks_into_it(sandbox: PodSandbox) -> None:
    assert (await ran(sandbox, "for n in $(seq 1 64); do kill -$n 1; done"))[0].code in (0, 1)
    # Those that Go leaves alone, while it forks and makes threads.
    hail = "for n in $(seq 500); do kill -32 1; kill -33 1; kill -34 1; done"
    codes = [ended.code for ended, _ in await asyncio.gather(*(ran(sandbox, hail) for _ in range(8)))]
    assert codes == [0] * 8
    for path in ("environ", "mem", "fd/0", "root/etc/hosts", "cwd/etc", "maps"):
        ended, said = await ran(sandbox, f"cat /proc/1/{path}")
        assert ended.code != 0, said
        assert "Permission denied" in said
    trace = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 1)"
    await sandbox.start(Command(["python3", "-c", trace]), "trace")
    assert await sandbox.wait("trace", 30) == Ended(1)
    assert await ran(sandbox, "cat /.echorl/daemon > /dev/null; echo x > /.echorl/daemon") != (Ended(0), "")
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")


async def started_again_and_again(sandbox: PodSandbox) -> None:
    for number in itertools.count():
        await sandbox.start(Command(["true"]), f"again-{number}")


async def test_a_thousand_processes_leave_room_for_the_daemon(daemons: Daemons) -> None:
    daemons.limit = ["prlimit", "--nproc=400"]
    daemon = await daemons.start()
    sandbox = client(daemon)
    # It takes every place that becomes free: another user of this machine's may have had it.
    fork = "import os, time\nwhile True:\n  try:\n    if os.fork() == 0:\n      time.sleep(1000)\n"
    fork += "  except OSError:\n    print('refused', flush=True)\n    time.sleep(0.01)\n"
    await sandbox.start(Command(["python3", "-c", fork]), "forks")
    while b"refused" not in await sandbox.output("forks"):
        assert await sandbox.wait("forks", 0.02) is None
    with pytest.raises(OSError, match="no further command"):
        await asyncio.wait_for(started_again_and_again(sandbox), 60)
    files = [f"/task/{number}" for number in range(30)]
    await asyncio.gather(*(sandbox.write(path, b"x" * 1_000_000) for path in files))
    assert {len(data) for data in await asyncio.gather(*map(sandbox.read, files))} == {1_000_000}
    await sandbox.kill("forks")
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")

    # The first shell forks nothing more once it has begun: there would be no room for that.
    await sandbox.start(Command(["sh", "-c", "bomb() { bomb | bomb & }; (bomb); exec sleep 1000"]), "bomb")
    assert await sandbox.wait("bomb", 1) is None
    await sandbox.kill("bomb")
    assert await ran(sandbox, "set -- /proc/[0-9]*; echo $#") == (Ended(0), "3\n")
    await sandbox.close()


BOMBS = {
    "forks": "import os\nwhile True: os.fork()",
    "forks what ends": "import os\nwhile True:\n  if os.fork() == 0 and os.fork(): os._exit(0)",
    "threads": "import threading, time\nfor _ in range(200): threading.Thread(target=time.sleep, args=(1000,)).start()",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_who_has_too_many_processes_is_ended_and_told(daemons: Daemons, bomb: str) -> None:
    # The kernel's limit spares this machine, should the daemon's fail.
    daemons.limit, daemons.processes = ["prlimit", "--nproc=6000"], 100
    daemon = await daemons.start()
    sandbox = client(daemon)
    # The shell would start its last command after it has told, and be one process more than was counted.
    many = "for n in $(seq 40); do sleep 1000 & done; echo begun; exec sleep 1000"
    await started(sandbox, many, "other", "begun")
    before = _running(daemon)
    await sandbox.start(Command(["python3", "-c", bomb]), "bomb")
    assert await sandbox.wait("bomb", 60) == Ended(137, out_of_processes=True)
    assert _running(daemon) == before
    assert await sandbox.wait("other", 0) is None, "who has fewer stays"
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")
    await sandbox.close()


async def test_input_and_output_that_nobody_takes(sandbox: PodSandbox) -> None:
    given = b"x" * (10 << 20)
    await sandbox.start(Command(["sh", "-c", "exec 0<&-; echo closed"], stdin=given), "closed")
    assert await sandbox.wait("closed", 30) == Ended(0)
    await sandbox.start(Command(["sleep", "1000"], stdin=given), "sleeps")
    await sandbox.kill("sleeps")
    assert await sandbox.wait("sleeps", 0) == Ended(137, killed=True)
    await sandbox.start(Command(["wc", "-c"], stdin=given), "counts")
    assert await sandbox.wait("counts", 30) == Ended(0)
    assert int(await sandbox.output("counts")) == len(given)


async def test_a_command_ends_while_another_holds_its_output(sandbox: PodSandbox) -> None:
    await started(sandbox, "echo $$; echo begun; sleep 1000", "first", "begun")
    number = (await sandbox.output("first")).split()[0].decode()
    await started(sandbox, f"exec 9> /proc/{number}/fd/1; echo begun; sleep 1000", "holds", "begun")
    async with asyncio.timeout(10):
        await sandbox.kill("first")
    assert await sandbox.wait("first", 0) == Ended(137, killed=True)
    assert await sandbox.wait("holds", 0) is None


async def test_a_disk_that_is_full(daemons: Daemons) -> None:
    daemons.binds = ["--size", str(8 << 20), "--tmpfs", "/task", "--size", str(4 << 20), "--tmpfs", "/var/echorl"]
    sandbox = client(await daemons.start())
    with pytest.raises(OSError, match="no space left"):
        await sandbox.write("/task/new", b"x" * (9 << 20))
    assert await ran(sandbox, "ls -A /task") == (Ended(0), "")
    await sandbox.start(Command(["sh", "-c", "head -c 20000000 /dev/zero; exit 3"]), "much")
    assert await sandbox.wait("much", 30) == Ended(3)
    assert 3 << 20 < len(await sandbox.output("much", limit=CAP_BYTES)) <= 4 << 20
    await sandbox.close()


async def test_only_plain_files_are_read_and_none_is_waited_for(sandbox: PodSandbox) -> None:
    made = "mkfifo fifo; ln -s fifo to_fifo; ln -s loop loop; ln -s /proc/self/environ environ; ln -s / up; "
    made += "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; touch secret; chmod 0 secret"
    assert await ran(sandbox, made) == (Ended(0), "")
    async with asyncio.timeout(20):
        for path in ("fifo", "to_fifo", "loop", "environ", "up", "up/proc/kmsg", "up/proc/1/environ", "socket"):
            with pytest.raises(OSError, match=r"plain file|too many levels|no such device|permission|not permitted"):
                await sandbox.read(f"/task/{path}")
        for path in ("/dev/zero", "/dev/tty", "/dev/ptmx", "/proc/self/mem", "/proc/1/cmdline", "/task/secret"):
            with pytest.raises(OSError, match=r"plain file|no such device|permission"):
                await sandbox.read(path)
        for path in ("task/secret", "", "/task/a\0b"):
            with pytest.raises(OSError, match="accepted is an absolute one"):
                await sandbox.read(path)
            with pytest.raises(OSError, match="accepted is an absolute one"):
                await sandbox.write(path, b"")
    await sandbox.write("/task/../task/up/task/./fifo", b"a file now")
    assert await sandbox.read("/task/fifo") == b"a file now"
    with pytest.raises(OSError, match=r"too many levels|file exists"):
        await sandbox.write("/task/loop/file", b"")
    with pytest.raises(OSError, match="read-only"):
        await sandbox.write("/usr/new", b"")
    for path in ("/task", "/task/", "/", "/task/.."):
        with pytest.raises(OSError, match=r"folder|directory"):
            await sandbox.write(path, b"")
    assert "." not in {name[0] for name in (await ran(sandbox, "ls -A"))[1].split()}


async def test_no_request_without_the_token(stranger: aiohttp.ClientSession, daemon: Daemon) -> None:
    async with stranger.get("/healthz") as answer:
        assert (answer.status, len(answer.headers["X-Boot"])) == (200, 26)
    for method, path in (
        ("PUT", "/commands/one"),
        ("GET", "/commands/one/end?wait_s=0"),
        ("DELETE", "/commands/one"),
        ("GET", "/files?path=/etc/hosts&limit=100"),
        ("PUT", "/files?path=/task/new&mode=644"),
        ("GET", "/nothing"),
        ("POST", "/healthz"),
    ):
        for token in (None, "", "Bearer", "Bearer ", "Bearer x", f"Basic {daemon.token}", f"Bearer {daemon.token}x"):
            given = {} if token is None else {"Authorization": token}
            async with stranger.request(method, path, headers=given, data=b"{}") as answer:
                assert answer.status == 401
                assert await answer.json(content_type=None) == {"error": "not this sandbox's token"}


async def test_what_is_no_request_is_refused(stranger: aiohttp.ClientSession, daemon: Daemon) -> None:
    stranger.headers["Authorization"] = f"Bearer {daemon.token}"
    right = hashlib.sha256(b"data").hexdigest()
    for method, path, headers, body, status in (
        ("PUT", "/commands/one", {}, b"no json", 409),
        ("PUT", "/commands/one", {}, b'{"argv": "true"}', 409),
        ("PUT", "/commands/one", {}, b"{}", 400),
        ("GET", "/commands/none/end?wait_s=0", {}, b"", 404),
        ("GET", "/commands/none/output?offset=0&limit=1", {}, b"", 404),
        ("DELETE", "/commands/none", {}, b"", 404),
        ("GET", "/files?path=/etc/hosts", {}, b"", 400),
        ("GET", "/files?path=/etc/hosts&limit=-1", {}, b"", 400),
        ("GET", "/files?path=/etc/hosts&limit=NaN", {}, b"", 400),
        ("GET", "/files?path=/none&limit=1", {}, b"", 404),
        ("PUT", "/files?path=/task/new&mode=644", {}, b"data", 409),
        ("PUT", "/files?path=/task/new&mode=644", {"X-Sha256": "0" * 64}, b"data", 409),
        ("PUT", "/files?path=/task/new&mode=999", {"X-Sha256": right}, b"data", 400),
        ("PUT", "/files?path=/task/new&mode=77777", {"X-Sha256": right}, b"data", 400),
        ("POST", "/files", {}, b"", 405),
    ):
        async with stranger.request(method, path, headers=headers, data=body) as answer:
            assert (answer.status, path) == (status, path), await answer.text()
    async with stranger.get("/files?path=/task/new&limit=9") as answer:
        assert answer.status == 404


@pytest.mark.parametrize("told", [True, False], ids=["with its length", "in parts"])
async def test_a_body_that_is_too_long_is_refused(
    stranger: aiohttp.ClientSession, daemon: Daemon, sandbox: PodSandbox, told: bool
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(CAP_BYTES // (1 << 20) + 1):
            yield b"x" * (1 << 20)

    stranger.headers["Authorization"] = f"Bearer {daemon.token}"
    for path in ("/files?path=/task/new&mode=644", "/commands/one"):
        data = io.BytesIO(b"x" * (CAP_BYTES + 1)) if told else parts()
        try:
            async with stranger.put(path, data=data, headers={"X-Sha256": "0" * 64}) as answer:
                assert answer.status in (409, 413) if path == "/commands/one" else answer.status == 413
        except aiohttp.ClientConnectionError:
            assert told  # It hung up on who goes on sending.
    assert await ran(sandbox, "ls -A /task") == (Ended(0), "")


async def test_the_longest_file_goes_in_and_out(sandbox: PodSandbox) -> None:
    data = os.urandom(1 << 20) * 64
    await sandbox.write("/task/long", data)
    assert await sandbox.read("/task/long") == data
    with pytest.raises(OSError, match="is longer than"):
        await sandbox.read("/task/long", limit=len(data) - 1)


async def test_connections_from_one_side_are_bounded_and_slow_ones_end(daemon: Daemon, sandbox: PodSandbox) -> None:
    host, port = daemon.address.removeprefix("http://").split(":")

    async def hangs_up(connection: socket.socket) -> bool:
        return await asyncio.get_running_loop().sock_recv(connection, 1 << 10) == b""

    held = [socket.create_connection((host, int(port))) for _ in range(FROM_ONE_SIDE)]
    for connection in held:
        connection.setblocking(False)
        connection.send(b"PUT /files HTTP/1.1\r\n")
    async with asyncio.timeout(3):
        with closing(socket.create_connection((host, int(port)))) as another:
            another.setblocking(False)
            assert await hangs_up(another)
    async with asyncio.timeout(20):
        for connection in held:
            while not await hangs_up(connection):
                pass
            connection.close()
    assert await ran(sandbox, "echo again") == (Ended(0), "again\n")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 150 MB of memory."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    base, limit = (first, "memory.limit_in_bytes") if first.exists() else (second, "memory.max")
    group = base / f"echorl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(150 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    deadline = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        pass
    group.rmdir()


async def test_who_takes_too_much_memory_is_told_and_not_the_daemon(memory_group: Path, daemons: Daemons) -> None:
    daemons.limit = ["sh", "-c", f'echo $$ > {memory_group}/cgroup.procs; exec "$@"', "sh"]
    seen = "/sys/fs/cgroup/memory" if memory_group.parent.name == "memory" else "/sys/fs/cgroup"
    daemons.binds = ["--ro-bind", str(memory_group), seen]
    sandbox = client(await daemons.start())
    assert await ran(sandbox, "echo before") == (Ended(0), "before\n")
    for number in range(3):
        key = str(number)
        await sandbox.start(Command(["python3", "-c", "x = []\nwhile True: x.append(b'x' * 10**6)"]), key)
        assert await sandbox.wait(key, 60) == Ended(137, out_of_memory=True)
    assert await ran(sandbox, "echo after") == (Ended(0), "after\n")
    await sandbox.close()
