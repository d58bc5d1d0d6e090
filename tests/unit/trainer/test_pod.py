"""One pod: how its ranks end, and what it makes of that."""

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest

from echorl_core.names import ExitCode
from echorl_testing.ports import free_port
from echorl_testing.trainer.pod_process import ScriptedPod
from echorl_trainer.rank_ends import End, telling


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
    pod = ScriptedPod(tmp_path, polite, polite, grace_s=60.0)
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
