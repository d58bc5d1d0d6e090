import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from echorl_cli.local import proctable
from echorl_cli.local.notes import Notes, end_leftovers, write_notes
from echorl_cli.local.proctable import MARK, end_all, is_alive, ours, remove_unused, stat_of

SLEEP = "import time; print(flush=True); time.sleep(300)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def spawn() -> Iterator:
    processes: list[subprocess.Popen[str]] = []

    def start(code: str = SLEEP, mark: str | None = None) -> subprocess.Popen[str]:
        environment = dict(os.environ) | ({} if mark is None else {MARK: mark})
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def started(process: subprocess.Popen[str]) -> int:
    stat = stat_of(process.pid)
    assert stat is not None
    return stat.started


def test_a_process_is_found_by_its_mark_or_by_its_session(spawn) -> None:
    marked, known, stranger = spawn(mark="aa11.x."), spawn(), spawn(mark="bb22.x.")
    found = {stat.pid for stat in ours("aa11.", {known.pid: started(known)})}
    assert found == {marked.pid, known.pid}
    assert stranger.pid not in found


def test_a_number_that_was_given_to_another_process_is_not_ours(spawn) -> None:
    stranger = spawn()
    wrong = {stranger.pid: started(stranger) - 1}
    assert ours("aa11.", wrong) == []
    assert end_all("aa11.", wrong, grace_s=0.1) == []
    assert is_alive(stranger.pid, started(stranger))


def test_members_of_a_dead_leaders_session_count_unless_that_is_long_ago(spawn) -> None:
    leader = spawn(
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], stdout=subprocess.DEVNULL); "
        "print(child.pid, flush=True); print(flush=True); child.wait()"
    )
    [child] = [stat.pid for stat in ours("aa11.", {leader.pid: started(leader)}) if stat.pid != leader.pid]
    known = {leader.pid: started(leader)}
    leader.kill()
    leader.wait()
    assert [stat.pid for stat in ours("aa11.", known)] == [child]
    assert ours("aa11.", known, strict=True) == []
    assert [stat.pid for stat in end_all("aa11.", known, grace_s=60)] == [child]


def test_what_ignores_sigterm_is_killed_after_the_grace(spawn) -> None:
    polite, stubborn = spawn(mark="aa11.x."), spawn(STUBBORN, mark="aa11.y.")
    begun = time.monotonic()
    ended = end_all("aa11.", {}, grace_s=0.3)
    assert {stat.pid for stat in ended} == {polite.pid, stubborn.pid}
    assert 0.3 <= time.monotonic() - begun < 60
    assert polite.wait() == -signal.SIGTERM
    assert stubborn.wait() == -signal.SIGKILL


def test_a_zombie_is_dead(spawn) -> None:
    process = spawn()
    assert is_alive(process.pid, started(process))
    begun = started(process)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid, begun)


def test_only_unused_shared_memory_is_removed() -> None:
    used, unused = (shared_memory.SharedMemory(create=True, size=64) for _ in range(2))
    paths = [Path("/dev/shm") / segment.name.lstrip("/") for segment in (used, unused)]
    unused.close()
    try:
        assert remove_unused([*paths, Path("/dev/shm/never-was")]) == [paths[1]]
        assert paths[0].exists()
    finally:
        used.close()
        used.unlink()


def test_leftovers_are_ended_by_start_time_and_mark(tmp_path: Path, spawn) -> None:
    recorded, marked, reused = spawn(), spawn(mark="cc33.orchestrator-0.1."), spawn()
    processes = {recorded.pid: started(recorded), reused.pid: started(reused) + 5}
    write_notes(tmp_path, Notes("cc33", proctable.boot_id(), processes, []))
    leftovers = end_leftovers(tmp_path, grace_s=1.0)
    assert leftovers is not None
    assert {stat.pid for stat in leftovers.ended} == {recorded.pid, marked.pid}
    assert leftovers.residual == []
    assert reused.poll() is None
    assert end_leftovers(tmp_path, grace_s=1.0) is None


def test_notes_of_an_earlier_boot_end_nothing(tmp_path: Path, spawn) -> None:
    process = spawn()
    write_notes(tmp_path, Notes("cc33", "another boot", {process.pid: started(process)}, []))
    leftovers = end_leftovers(tmp_path, grace_s=0.1)
    assert leftovers is not None
    assert leftovers.ended == []
    assert process.poll() is None


def test_broken_notes_are_dropped(tmp_path: Path) -> None:
    (tmp_path / ".processes.json").write_text('{"mark": "aa"')
    assert end_leftovers(tmp_path, grace_s=0.1) is not None
    assert end_leftovers(tmp_path, grace_s=0.1) is None


def test_cpu_of_descendants_is_that_of_children_and_theirs() -> None:
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    inner = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert proctable.cpu_of_descendants_s(os.getpid()) >= 0.3
        assert proctable.cpu_of_descendants_s(child.pid) == 0.0
        assert child.stdin is not None
        child.stdin.close()
