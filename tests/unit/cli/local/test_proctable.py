import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from echorl_cli.local import proctable
from echorl_cli.local.lock import Locked
from echorl_cli.local.notes import Notes, end_leftovers, write_notes
from echorl_cli.local.proctable import MARK, end_all, is_alive, ours, stat_of
from echorl_core.segments import mapped_segments, remove_unused

AA, BB, CC, DD = (f"{letters}{os.getpid():x}" for letters in ("aa", "bb", "cc", "dd"))
"""Marks, which are looked for on the whole machine."""
SLEEP = "import time; print(flush=True); time.sleep(300)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def spawn() -> Iterator:
    processes: list[subprocess.Popen[str]] = []

    def start(
        code: str = SLEEP, mark: str | None = None, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        variables = dict(os.environ if environment is None else environment) | ({} if mark is None else {MARK: mark})
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        process.first_line = process.stdout.readline()
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
    marked, known, stranger = spawn(mark=f"{AA}.x."), spawn(), spawn(mark=f"{BB}.x.")
    found = {stat.pid for stat in ours(f"{AA}.", {known.pid: started(known)})}
    assert found == {marked.pid, known.pid}
    assert stranger.pid not in found


def test_a_number_that_was_given_to_another_process_is_not_ours(spawn) -> None:
    stranger = spawn()
    wrong = {stranger.pid: started(stranger) - 1}
    assert ours(f"{AA}.", wrong) == []
    assert end_all(f"{AA}.", wrong, grace_s=0.1) == []
    assert is_alive(stranger.pid, started(stranger))


def test_members_of_a_dead_leaders_session_count_unless_that_is_long_ago(spawn) -> None:
    leader = spawn(
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], stdout=subprocess.DEVNULL); "
        "print(child.pid, flush=True); print(flush=True); child.wait()"
    )
    [child] = [stat.pid for stat in ours(f"{AA}.", {leader.pid: started(leader)}) if stat.pid != leader.pid]
    known = {leader.pid: started(leader)}
    leader.kill()
    leader.wait()
    assert [stat.pid for stat in ours(f"{AA}.", known)] == [child]
    assert ours(f"{AA}.", known, strict=True) == []
    assert [stat.pid for stat in end_all(f"{AA}.", known, grace_s=60)] == [child]


def test_what_ignores_sigterm_is_killed_after_the_grace(spawn) -> None:
    polite, stubborn = spawn(mark=f"{AA}.x."), spawn(STUBBORN, mark=f"{AA}.y.")
    begun = time.monotonic()
    ended = end_all(f"{AA}.", {}, grace_s=0.3)
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


def test_only_unused_segments_of_libraries_are_removed() -> None:
    used, unused = (shared_memory.SharedMemory(create=True, size=64) for _ in range(2))
    paths = [Path("/dev/shm") / segment.name.lstrip("/") for segment in (used, unused)]
    inodes = {path.name: path.stat().st_ino for path in paths}
    assert mapped_segments([os.getpid()]).items() >= inodes.items()
    unused.close()
    try:
        assert remove_unused({**inodes, "psm_never-was": 1}) == [paths[1]]
        assert paths[0].exists()
    finally:
        used.close()
        used.unlink()


def test_a_file_in_memory_that_is_no_segment_stays(tmp_path: Path) -> None:
    # As a model that its user keeps there, or another library's segment of the same name.
    model = Path(f"/dev/shm/echorl-test-{os.getpid()}.safetensors")
    later = Path(f"/dev/shm/psm_echorl-test-{os.getpid()}")
    outside = tmp_path / "precious"
    try:
        for path in (model, later, outside):
            path.write_bytes(b"x" * 64)
        with model.open("r+b") as file, mmap.mmap(file.fileno(), 64):
            assert model.name not in mapped_segments([os.getpid()])
        names = {model.name: model.stat().st_ino, later.name: later.stat().st_ino + 1}
        names[f"../..{outside}"] = outside.stat().st_ino
        assert remove_unused(names) == []
        assert all(path.exists() for path in (model, later, outside))
    finally:
        model.unlink()
        later.unlink()


def without_mark() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PATH"}


def written(root: Path, **changes: object) -> None:
    """The notes of a supervisor that is gone, with some fields changed."""
    file = root / ".processes.json"
    gone = {"supervisor_started": 1}
    file.write_text(json.dumps({**json.loads(file.read_text()), **gone, **changes}))


def test_leftovers_are_ended_by_start_time_and_mark(tmp_path: Path, spawn) -> None:
    recorded, marked = spawn(environment=without_mark()), spawn(mark=f"{CC}.orchestrator-0.1.")
    reused, foreign = spawn(environment=without_mark()), spawn(mark=f"{DD}.orchestrator-0.1.")
    processes = {one.pid: started(one) for one in (recorded, foreign)} | {reused.pid: started(reused) + 5}
    write_notes(tmp_path, Notes(CC, processes, {}))
    written(tmp_path)
    leftovers = end_leftovers(tmp_path, grace_s=1.0)
    assert leftovers is not None
    assert {stat.pid for stat in leftovers.ended} == {recorded.pid, marked.pid}
    assert leftovers.residual == []
    assert (reused.poll(), foreign.poll()) == (None, None)
    assert end_leftovers(tmp_path, grace_s=1.0) is None


def test_a_noted_process_with_variables_of_its_own_is_ended_in_a_noted_session_alone(tmp_path: Path, spawn) -> None:
    leader = spawn(
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], env={{'PATH': '/bin'}}, "
        "stdout=subprocess.DEVNULL); print(child.pid, flush=True); child.wait()",
        mark=f"{CC}.trainer-0.1.",
    )
    child = int(leader.first_line)
    stranger = spawn(environment={"PATH": "/bin"})
    stat = stat_of(child)
    assert stat is not None
    processes = {one.pid: started(one) for one in (leader, stranger)} | {child: stat.started}
    write_notes(tmp_path, Notes(CC, processes, {}))
    written(tmp_path)
    leader.kill()
    leader.wait()
    leftovers = end_leftovers(tmp_path, grace_s=1.0)
    assert leftovers is not None
    assert [stat.pid for stat in leftovers.ended] == [child]
    assert stranger.poll() is None


def test_notes_in_a_copy_of_the_folder_end_nothing(tmp_path: Path, spawn) -> None:
    process = spawn(mark=f"{CC}.orchestrator-0.1.")
    (tmp_path / "run").mkdir()
    write_notes(tmp_path / "run", Notes(CC, {process.pid: started(process)}, {}))
    written(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    leftovers = end_leftovers(tmp_path / "copy", grace_s=0.1)
    assert leftovers is not None
    assert (leftovers.ended, leftovers.copied_from) == ([], str(tmp_path / "run"))
    assert process.poll() is None
    assert end_leftovers(tmp_path / "copy", grace_s=0.1) is None


def test_notes_go_with_a_folder_that_is_moved(tmp_path: Path, spawn) -> None:
    process = spawn(mark=f"{CC}.orchestrator-0.1.")
    (tmp_path / "run").mkdir()
    write_notes(tmp_path / "run", Notes(CC, {}, {}))
    written(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    leftovers = end_leftovers(tmp_path / "moved", grace_s=0.1)
    assert leftovers is not None
    assert [stat.pid for stat in leftovers.ended] == [process.pid]


def test_notes_of_a_living_supervisor_are_refused_though_its_lock_is_gone(tmp_path: Path, spawn) -> None:
    supervisor, process = spawn(), spawn(mark=f"{CC}.orchestrator-0.1.")
    write_notes(tmp_path, Notes(CC, {process.pid: started(process)}, {}))
    written(tmp_path, supervisor=supervisor.pid, supervisor_started=started(supervisor))
    with pytest.raises(Locked, match=f"another `echorl run` .pid {supervisor.pid}."):
        end_leftovers(tmp_path, grace_s=0.1)
    assert process.poll() is None


def test_notes_of_an_earlier_boot_end_nothing(tmp_path: Path, spawn) -> None:
    process = spawn(mark=f"{CC}.orchestrator-0.1.")
    write_notes(tmp_path, Notes(CC, {process.pid: started(process)}, {}))
    written(tmp_path, boot="another boot")
    leftovers = end_leftovers(tmp_path, grace_s=0.1)
    assert leftovers is not None
    assert leftovers.ended == []
    assert process.poll() is None


BROKEN = {
    "cut": '{"mark": "aa"',
    "a list": "[]",
    "empty": "",
    "deep": "[" * 100_000,
    "wrong": '{"mark": 3}',
    "bytes": "\udcff",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_broken_notes_are_dropped(tmp_path: Path, text: str) -> None:
    (tmp_path / ".processes.json").write_bytes(text.encode(errors="surrogateescape"))
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
