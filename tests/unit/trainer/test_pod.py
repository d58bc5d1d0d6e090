import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from echorl_core.config import MemoryConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_core.termination_message import TerminationMessage, read
from echorl_testing.ports import free_port
from echorl_testing.trainer import scripted_pod
from echorl_testing.trainer.trainer_processes import trainer_config
from echorl_trainer.__main__ import read_input
from echorl_trainer.in_place_http import restarts_in_place
from echorl_trainer.pod import main
from echorl_trainer.pod_layout import Layout
from echorl_trainer.rank_ends import End, telling

VARIABLES = {
    "ECHORL_PODS": "4",
    "ECHORL_POD_INDEX": "2",
    "ECHORL_RANKS_PER_POD": "8",
    "MASTER_ADDR": "run-trainer-0.run-trainer",
    "MASTER_PORT": "29500",
}


def test_ranks_are_numbered_through_the_pods() -> None:
    layout = Layout.from_environment(VARIABLES)
    assert layout.environment(3) == {"RANK": "19", "LOCAL_RANK": "3", "WORLD_SIZE": "32"}
    ranks = [Layout(4, index, 8).rank(local) for index in range(4) for local in range(8)]
    assert ranks == list(range(32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ECHORL_PODS": ""}, "ECHORL_PODS: found '', accepted is an integer from 1"),
        ({"ECHORL_RANKS_PER_POD": "0"}, "ECHORL_RANKS_PER_POD: found '0'"),
        ({"ECHORL_POD_INDEX": "-1"}, "ECHORL_POD_INDEX: found '-1'"),
        ({"MASTER_PORT": ""}, "missing: MASTER_PORT"),
    ],
)
def test_a_wrong_layout_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.from_environment({**VARIABLES, **changes})


def test_a_gang_of_one_needs_no_address() -> None:
    one = {"ECHORL_PODS": "1", "ECHORL_POD_INDEX": "0", "ECHORL_RANKS_PER_POD": "1"}
    assert Layout.from_environment(one).world_size == 1


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ([End(0, 0), End(1, 0)], None),
        ([End(0, 0), End(1, 143, asked=True)], None),
        ([End(0, 1), End(1, 143, asked=True)], 0),
        ([End(0, 1), End(1, 3)], 1),
        ([End(0, 1), End(1, 3, asked=True)], 1),
        ([End(0, 1), End(1, -signal.SIGSEGV)], 1),
        ([End(0, 1), End(1, 1)], 0),
        ([End(0, -9), End(1, 5), End(2, 2)], 1),
        ([End(0, 1), End(1, 9)], 1),
        ([End(0, 9, asked=True), End(1, 3, asked=True)], 1),
    ],
)
def test_the_telling_end(ends: list[End], rank: int | None) -> None:
    found = telling(ends)
    assert (None if found is None else found.rank) == rank


def test_a_pod_without_its_variables_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "log"
    monkeypatch.setenv("ECHORL_TERMINATION_LOG", str(file))
    for name, value in {
        "ECHORL_RUN_NAME": "n",
        "ECHORL_RUN_UID": "u",
        "ECHORL_ATTEMPT": "2",
        "ECHORL_ADMIN_TOKEN": "t",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["--config", "nowhere.json"]) == ExitCode.BAD_INPUT
    words = read(file.read_bytes())
    assert words is not None
    assert words.message.startswith("ECHORL_PODS: found ''")


STARTED: list["ScriptedPod"] = []
"""By the test that runs."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Also of a test that fails."""
    yield
    while STARTED:
        if (pod := STARTED.pop()).process.poll() is None:
            pod.kill()


class ScriptedPod:
    def __init__(
        self,
        folder: Path,
        *scripts: str,
        settle_s: float = 1.0,
        notice_s: float | None = None,
        gang: tuple[int, int, int] = (0, 1, 0),
    ) -> None:
        """``gang``: index, pods, port."""
        self.folder = folder
        self._said = "said.json" if not gang[0] else f"said_{gang[0]}.json"
        identity = {"ECHORL_RUN_NAME": "run", "ECHORL_RUN_UID": "uid", "ECHORL_ATTEMPT": "7"}
        command = [sys.executable, scripted_pod.__file__, str(folder), *scripts]
        support = str(Path(scripted_pod.__file__).parents[2])
        environment = {**os.environ, **identity, "PYTHONPATH": support, "SETTLE_S": str(settle_s)}
        environment["GANG"] = "/".join(map(str, gang))
        if notice_s is not None:
            environment["NOTICE_S"] = str(notice_s)
        self.process = subprocess.Popen(command, env=environment)
        STARTED.append(self)

    def wait_for(self, *names: str) -> None:
        until = time.monotonic() + 120
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < until, names
            assert self.process.poll() is None, self.process.returncode
            time.sleep(0.01)

    def ended(self) -> tuple[int, TerminationMessage]:
        code = self.process.wait(120)
        words = read((self.folder / self._said).read_bytes())
        assert words is not None
        assert words.exit_code == code
        return code, words

    def kill(self) -> None:
        """All its processes are gone at once."""
        pid = self.process.pid
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.process.kill()
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(int(rank), signal.SIGKILL)
        self.process.wait(60)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


SLEEPS = "done(f'up_{rank}'); signal.pause()"
"""Ends on SIGTERM as Python does by itself."""


def test_all_ranks_finish(tmp_path: Path) -> None:
    said = "write(message_of_end('trainer', 0, 'finished', step=12))"
    code, words = ScriptedPod(tmp_path, said, "pass").ended()
    assert (code, words.message, words.step) == (0, "2 ranks finished", 12)


def test_a_nan_outweighs_the_crash_that_it_causes(tmp_path: Path) -> None:
    crash = "write(message_of_end('trainer', 1, 'connection reset')); done('crashed'); sys.exit(1)"
    nan = "write(message_of_end('trainer', 3, 'loss is NaN', step=5, attempt=7)); wait_for('crashed'); os._exit(3)"
    code, words = ScriptedPod(tmp_path, crash, nan, settle_s=60.0).ended()
    assert code == ExitCode.NON_FINITE
    assert (words.rank, words.message, words.step, words.attempt) == (1, "loss is NaN", 5, 7)


def test_a_killed_rank_ends_the_others_and_its_signal_is_told(tmp_path: Path) -> None:
    killed = "wait_for('up_1'); os.kill(os.getpid(), signal.SIGKILL)"
    code, words = ScriptedPod(tmp_path, killed, SLEEPS).ended()
    assert code == 128 + signal.SIGKILL
    assert words.message == "rank 0 was ended by SIGKILL without a word"
    assert (words.rank, words.attempt) == (0, 7)


def gang_of_two(folder: Path, *scripts: str) -> list[tuple[int, TerminationMessage]]:
    port = free_port()
    pods = [ScriptedPod(folder, script, settle_s=0.1, gang=(index, 2, port)) for index, script in enumerate(scripts)]
    return [pod.ended() for pod in pods]


FAILS = "hold(4); wait_for('up_1'); os.kill(os.getpid(), signal.SIGKILL) if not restarts else None"
HANGS = "done(f'up_{rank}'); signal.pause() if not restarts else None"
"""As ranks do that wait for one which is gone."""


@pytest.mark.parametrize("failing", [0, 1])
def test_pods_whose_ranks_all_hold_a_step_start_them_again_together(tmp_path: Path, failing: int) -> None:
    scripts = [FAILS.replace("up_1", f"up_{1 - failing}"), f"hold(3); hold(4); {HANGS}"]
    ended = gang_of_two(tmp_path, *(scripts if failing == 0 else reversed(scripts)))
    assert [(code, words.message) for code, words in ended] == [(0, "1 ranks finished")] * 2


def test_pods_that_hold_no_step_together_end_and_tell_the_cause_from_what_followed(tmp_path: Path) -> None:
    (first, cause), (second, followed) = gang_of_two(tmp_path, FAILS, f"hold(3); {HANGS}")
    assert (first, cause.message) == (128 + signal.SIGKILL, "rank 0 was ended by SIGKILL without a word")
    assert (second, followed.message) == (ExitCode.CRASH, "a rank of another pod had failed")


def test_a_rank_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    stubborn = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "(folder / 'child').write_text(str(child.pid)); done('up_0'); child.wait()"
    )
    pod = ScriptedPod(tmp_path, stubborn, "wait_for('up_0'); sys.exit(4)")
    code, words = pod.ended()
    assert (code, words.rank) == (ExitCode.ENVIRONMENT, 1)
    # The pod has reaped it, or the kernel is about to.
    until = time.monotonic() + 60
    while Path(f"/proc/{pod.text('child')}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_sigterm_is_passed_on(tmp_path: Path) -> None:
    polite = (
        "def leave(*_):\n    done(f'asked_{rank}'); os._exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "done(f'up_{rank}')\nwhile True: time.sleep(60)"
    )
    pod = ScriptedPod(tmp_path, polite, polite)
    pod.wait_for("up_0", "up_1")
    pod.process.send_signal(signal.SIGTERM)
    code, words = pod.ended()
    assert (code, words.message) == (143, "terminated")
    assert (tmp_path / "asked_0").exists()
    assert (tmp_path / "asked_1").exists()


def test_a_signal_that_the_kernel_gives_to_another_thread_is_heard(tmp_path: Path) -> None:
    pod = ScriptedPod(tmp_path, SLEEPS, gang=(0, 2, free_port()))
    pod.wait_for("up_0")
    pid = pod.process.pid
    others = {int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()} - {pid}
    assert others
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.tgkill(pid, others.pop(), signal.SIGTERM) == 0, os.strerror(ctypes.get_errno())
    code, words = pod.ended()
    assert (code, words.message) == (143, "terminated")


def rank_under_notice(end: str) -> str:
    return (
        f"def told(*_):\n    done(f'told_{{rank}}'); {end}\n"
        "signal.signal(signal.SIGUSR1, told)\n"
        "(folder / f'pid_{rank}').write_text(str(os.getpid()))\n"
        "done(f'up_{rank}')\nwhile True: time.sleep(60)"
    )


SAVES = rank_under_notice("write(message_of_end('trainer', 9, 'saved', step=4)); os._exit(9)")
AFTER_THAT = "\n    while os.path.exists('/proc/' + (folder / 'pid_0').read_text()): time.sleep(0.01)\n    "
"""The first rank's process is gone: one that is lost before it has saved keeps it from that."""


@pytest.mark.parametrize(
    ("other", "code", "message"),
    [
        (SAVES, 9, "saved"),
        (rank_under_notice(AFTER_THAT + "os._exit(1)"), 9, "saved"),
        (rank_under_notice("os._exit(3)"), 3, "rank 1 ended with code 3 (NON_FINITE) without a word"),
    ],
    ids=["both save", "one is lost", "one finds a NaN"],
)
def test_a_notice_is_passed_on_and_is_the_cause(tmp_path: Path, other: str, code: int, message: str) -> None:
    pod = ScriptedPod(tmp_path, SAVES, other, notice_s=60.0)
    pod.wait_for("up_0", "up_1")
    pod.process.send_signal(signal.SIGTERM)
    found, words = pod.ended()
    assert (found, words.message) == (code, message)


def test_a_rank_that_hung_before_a_notice_is_a_fault_and_ends_its_peers(tmp_path: Path) -> None:
    waits = rank_under_notice("pass")
    pod = ScriptedPod(tmp_path, rank_under_notice("os._exit(143)"), waits, notice_s=60.0)
    pod.wait_for("up_0", "up_1")
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ended()[0] == 143


def test_ranks_that_are_too_slow_are_killed_when_the_time_is_over(tmp_path: Path) -> None:
    pod = ScriptedPod(tmp_path, rank_under_notice("pass"), notice_s=0.0)
    pod.wait_for("up_0")
    pod.process.send_signal(signal.SIGTERM)
    code, words = pod.ended()
    assert (code, words.message) == (9, "given notice")


def test_orphans_are_reaped(tmp_path: Path) -> None:
    # A grandchild that outlives its parent and ends while the rank goes on.
    script = (
        "subprocess.run(['sh', '-c', f'(sleep 0.1; echo $$ > {folder}/gone) & echo $! > {folder}/orphan'])\n"
        "wait_for('gone')\n"
        "pid = (folder / 'orphan').read_text().strip()\n"
        "until = time.monotonic() + 60\n"
        "while pathlib.Path(f'/proc/{pid}').exists() and time.monotonic() < until: time.sleep(0.01)\n"
        "sys.exit(1 if pathlib.Path(f'/proc/{pid}').exists() else 0)"
    )
    code, words = ScriptedPod(tmp_path, script).ended()
    assert code == 0, words


@pytest.mark.parametrize(
    ("publish", "advertise", "variable", "found"),
    [
        ("10.0.0.1", None, None, None),
        ("0.0.0.0", "trainer-0", None, "trainer-0"),
        ("0.0.0.0", "trainer-0", "10.0.0.7", "10.0.0.7"),
        ("0.0.0.0", None, "10.0.0.7", "10.0.0.7"),
    ],
)
def test_the_pods_own_name_overrides_the_configs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: str,
    advertise: str | None,
    variable: str | None,
    found: str | None,
) -> None:
    for name, value in {
        "ECHORL_RUN_NAME": "n",
        "ECHORL_RUN_UID": "u",
        "ECHORL_ATTEMPT": "2",
        "ECHORL_ADMIN_TOKEN": "t",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ECHORL_ADVERTISE_HOST", raising=False)
    if variable is not None:
        monkeypatch.setenv("ECHORL_ADVERTISE_HOST", variable)
    config = trainer_config(RunDirectory(tmp_path), tmp_path, publish_host=publish, advertise_host=advertise)
    config.dump(tmp_path / "trainer.json")
    read_config, *_ = read_input(["--config", str(tmp_path / "trainer.json")])
    assert read_config.advertise_host == found


KEEPS = """
slot, note = slots_from(os.environ)[0], mirror_note_from(os.environ)
if restarts:
    held = next(one for one in slots_from(os.environ) if one.step == 4)
    (folder / f"resumed_{rank}_{restarts}").write_bytes(held.record())
    note.want(4)
else:
    slot.seal(4, f"of rank {rank}".encode(), HEAD_BYTES)
    note.want(4)
while note.done != 4:
    time.sleep(0.01)
done(f"mirrored_{rank}_{restarts}")
if restarts < 4:
    signal.pause()
"""
"""Ranks that hold step 4 until they are ended, four times."""


def test_others_take_the_place_of_lost_pods_with_what_their_neighbours_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, ports = tmp_path / "trainer.json", [free_port() for _ in range(3)]
    memory = MemoryConfig(limit_bytes=2**20, mirror=True)
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory, publish_host="127.0.0.1").dump(config)
    variables = {
        "CONFIG": str(config),
        "MASTER_ADDR": "127.0.0.1",
        "ECHORL_GANG_PORT": str(ports[0]),
        "ECHORL_GANG_MEMBERS": ",".join(f"127.0.0.1:{port}" for port in ports),
        "ECHORL_ADMIN_TOKEN": "token",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pods = [ScriptedPod(tmp_path, KEEPS, gang=(index, 3, ports[0])) for index in range(3)]
    # One is killed whole; then the one after it is told to end, which by then holds what that one came back with; then
    # the first one, which decides for the gang, is lost in both ways.
    for restarts, (lost, is_killed) in enumerate(((1, True), (2, False), (0, True), (0, False))):
        for index, pod in enumerate(pods):
            pod.wait_for(f"mirrored_{index}_{restarts}")
        if is_killed:
            pods[lost].kill()
        else:
            pods[lost].process.terminate()
            assert pods[lost].process.wait(60) == 143
        pods[lost] = ScriptedPod(tmp_path, KEEPS, gang=(lost, 3, ports[0]))
    assert [pod.ended()[0] for pod in pods] == [0, 0, 0]
    for restarts in range(1, 5):
        assert [(tmp_path / f"resumed_{rank}_{restarts}").read_text() for rank in range(3)] == [
            f"of rank {rank}" for rank in range(3)
        ]


@pytest.mark.parametrize("members", ["", "host", "host:1", "host:1,:2", "host:1,host:port", "a:1,b:2,c:3"])
def test_pods_that_hold_copies_for_each_other_need_an_address_of_each(tmp_path: Path, members: str) -> None:
    config = tmp_path / "trainer.json"
    memory = MemoryConfig(limit_bytes=2**30, mirror=True)
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory).dump(config)
    environ = {"MASTER_ADDR": "127.0.0.1", "ECHORL_GANG_PORT": "1", "ECHORL_ADMIN_TOKEN": "token"}
    with pytest.raises(
        ValueError, match=f"ECHORL_GANG_MEMBERS: found '{members}', accepted is host:port of each of 2 pods"
    ):
        restarts_in_place(
            config,
            environ | {"ECHORL_GANG_MEMBERS": members},
            RunIdentity("n", "u", 2),
            pods=2,
            pod=1,
            ranks=range(1, 2),
        )


@pytest.mark.parametrize("port", ["", "no port", "65536"])
def test_pods_that_restart_in_place_together_need_a_port_to_agree_at(tmp_path: Path, port: str) -> None:
    memory = MemoryConfig(limit_bytes=2**30)
    config = tmp_path / "trainer.json"
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory).dump(config)
    identity, environ = RunIdentity("n", "u", 2), {"MASTER_ADDR": "127.0.0.1", "ECHORL_GANG_PORT": port}
    with pytest.raises(ValueError, match=f"ECHORL_GANG_PORT: found '{port}', accepted is a port"):
        restarts_in_place(config, environ, identity, pods=2, pod=0, ranks=range(1))
    with pytest.raises(ValueError, match="ECHORL_ADMIN_TOKEN"):
        restarts_in_place(config, environ | {"ECHORL_GANG_PORT": "1"}, identity, pods=2, pod=1, ranks=range(1, 2))
    assert restarts_in_place(config, {}, identity, pods=1, pod=0, ranks=range(1)) is not None


def test_an_address_that_means_any_is_told_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHORL_ADVERTISE_HOST", "0.0.0.0")
    trainer_config(RunDirectory(tmp_path), tmp_path, publish_host="0.0.0.0").dump(tmp_path / "trainer.json")
    with pytest.raises(ValueError, match=r"advertise_host: .* found '0\.0\.0\.0'"):
        read_input(["--config", str(tmp_path / "trainer.json")])


def test_a_pod_beyond_the_gang_holds_its_place_until_it_is_told_to_end(tmp_path: Path) -> None:
    identity = {"ECHORL_RUN_NAME": "run", "ECHORL_RUN_UID": "uid", "ECHORL_ATTEMPT": "7", "ECHORL_ADMIN_TOKEN": "t"}
    variables = {**VARIABLES, **identity, "ECHORL_POD_INDEX": "4", "ECHORL_GRACE_S": "60"}
    command = [sys.executable, "-m", "echorl_trainer.pod", "--config", "nowhere.json"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=file, stderr=file)
    until = time.monotonic() + 60
    while b"holding a place" not in log.read_bytes():
        assert time.monotonic() < until
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == ExitCode.OK
