"""The supervisor with real processes in the roles' places."""

import itertools
import json
import os
import select
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from echorl_cli.local import proctable
from echorl_core.names import ExitCode
from echorl_core.rundir import TEMPORARY_PREFIX
from echorl_testing.local import fake_local_run
from echorl_testing.local.small_disk import small_disk
from echorl_testing.warm import Program

pytestmark = pytest.mark.faults

T = TypeVar("T")
_NUMBERS = itertools.count()
SUPPORT = str(Path(fake_local_run.__file__).parents[2])
QUICK = {"backoff_s": 0.0, "max_restarts": 3}
LIMITS = {"settle": 0.2, "health_interval": 0.1, "engine_grace": 0.5, "grace": 0.5}


def eventually(question: Callable[[], T], what: str, deadline_s: float = 90.0) -> T:
    end = time.monotonic() + deadline_s
    while not (answer := question()):
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.02)
    return answer


def alive(pid: int) -> bool:
    return proctable.stat_of(pid) is not None


class Run:
    """One ``fake_local_run.py``, seen from outside."""

    def __init__(self, root: Path, output: Path, **chosen: Any) -> None:
        self.root = root
        chosen = {
            **chosen,
            "restart_policy": {**QUICK, **chosen.get("restart_policy", {})},
            "limits": {**LIMITS, **chosen.get("limits", {})},
        }
        self._output = output
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")])}
        arguments = [root, json.dumps(chosen)]
        self.process = Program(
            "echorl_testing.local.fake_local_run", arguments, environment=variables, output=self._output
        )

    def all_of(self, name: str) -> list[dict[str, Any]]:
        """Every process that a role has had, oldest first."""
        files = sorted((self.root / "roles" / name).glob("[0-9]*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(path.read_text()) for path in files]

    def count(self, name: str) -> int:
        """How many processes a role has had, the first of which is up."""
        self.role(name)
        return len(self.all_of(name))

    def role(self, name: str, launch: int = 0) -> dict[str, Any]:
        """The ``launch``-th process of a role, once it is up."""
        return eventually(lambda: self.all_of(name)[launch : launch + 1], f"{name} number {launch}")[0]

    def tell(self, name: str, what: str, launch: int = 0) -> None:
        port = self.role(name, launch)["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{what}", data=b"", timeout=60):
            pass

    def state(self) -> dict[str, Any]:
        try:
            return json.loads((self.root / "state.json").read_text())
        except FileNotFoundError:
            return {}

    def until_running(self) -> None:
        def running() -> bool:
            code = self.process.returncode
            assert code is None, f"ended with {code} before it was running:\n{self.printed()}"
            return self.state().get("phase") == "Running"

        eventually(running, "running")
        self.role("trainer-1")  # an orchestrator may say that it runs when not all ranks were started

    def printed(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def output(self) -> str:
        """Everything it printed, once it has ended."""
        self.process.ended(120)
        return self.printed()

    def every_pid(self) -> list[int]:
        found = [json.loads(path.read_text()) for path in self.root.glob("roles/*/[0-9]*.json")]
        return [pid for one in found for pid in (one["pid"], *one["grandchildren"])]

    def assert_nothing_left(self) -> None:
        pids = self.every_pid()
        assert pids
        eventually(lambda: not any(alive(pid) for pid in pids), f"the end of all of {pids}", 60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(root: Path = tmp_path / "run", output: Path | None = None, **chosen: Any) -> Run:
        runs.append(Run(root, output or tmp_path / f"output.{next(_NUMBERS)}.log", **chosen))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.output()
        for pid in run.every_pid():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_clean_end_stops_the_engines_and_succeeds(start) -> None:
    run = start(engines=2)
    run.until_running()
    environment = run.role("trainer-1")["environment"]
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["LOCAL_RANK"]) == ("1", "2", "1")
    assert environment["ECHORL_ATTEMPT"] == "1"
    run.tell("orchestrator-0", "/finish")
    assert "Outcome(phase=<Phase.SUCCEEDED" in run.output()
    assert run.process.returncode == 0
    assert run.state()["phase"] == "Succeeded"
    assert run.state()["restarts"] == 0
    assert run.state()["setup_s"] > 0
    assert [entry["phase"] for entry in run.state()["timeline"]] == ["Preparing", "Starting", "Running", "Succeeded"]
    assert (run.root / "logs" / "latest" / "trainer-0.log").exists()
    run.assert_nothing_left()


def test_a_stop_that_comes_after_the_end_changes_nothing(start) -> None:
    """Signals from the moment on that the exit code is written until the process has ended with it."""
    run = start()
    run.until_running()
    run.tell("orchestrator-0", "/finish")
    eventually(lambda: run.state().get("exit_code") is not None, "the end is written")
    numbers = itertools.cycle([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    eventually(lambda: run.process.send_signal(next(numbers)) or run.process.returncode is not None, "its end")
    assert run.process.returncode == run.state()["exit_code"] == 0


def test_an_engine_restarts_alone(start) -> None:
    run = start(engines=2)
    run.until_running()
    first = run.role("inference-1")
    run.tell("inference-1", "/exit?code=1")
    second = run.role("inference-1", launch=1)
    assert not any(alive(pid) for pid in first["grandchildren"])
    assert (second["attempt"], second["port"]) == (1, first["port"])
    assert run.count("inference-0") == run.count("orchestrator-0") == run.count("trainer-0") == 1
    run.tell("orchestrator-0", "/finish")
    assert "leaving with 1" in run.output()
    assert run.state()["restarts_by_cause"] == {"inference": 1}
    assert (run.root / "logs" / "attempt_1" / "inference-1.1.log").exists()


def test_the_orchestrator_restarts_alone_in_its_attempt(start) -> None:
    run = start()
    run.until_running()
    os.kill(run.role("orchestrator-0")["pid"], signal.SIGKILL)
    assert run.role("orchestrator-0", launch=1)["attempt"] == 1
    run.tell("orchestrator-0", "/finish", launch=1)
    run.output()
    assert run.process.returncode == 0
    assert run.count("trainer-0") == 1
    assert run.state()["restarts_by_cause"] == {"orchestrator": 1}


def test_a_lost_rank_restarts_gang_and_orchestrator_as_a_new_attempt(start) -> None:
    run = start()
    run.until_running()
    stale = run.root / "batches" / "step_000001"
    stale.mkdir(parents=True)
    first = [run.role(name) for name in ("trainer-0", "trainer-1", "orchestrator-0")]
    os.kill(first[0]["pid"], signal.SIGKILL)
    second = [run.role(name, launch=1) for name in ("trainer-0", "trainer-1", "orchestrator-0")]
    assert [one["attempt"] for one in second] == [2, 2, 2]
    assert not any(alive(pid) for one in first for pid in (one["pid"], *one["grandchildren"]))
    assert not stale.exists()
    assert second[0]["environment"]["MASTER_PORT"] != first[0]["environment"]["MASTER_PORT"]
    assert json.loads((run.root / "attempts" / "2" / "prepared.json").read_text())["removed"] == ["batches/step_000001"]
    assert run.count("inference-0") == 1
    run.tell("orchestrator-0", "/finish", launch=1)
    run.output()
    assert run.process.returncode == 0
    assert run.state()["restarts_by_cause"] == {"trainer": 1}
    run.assert_nothing_left()


def test_a_lost_rank_goes_on_in_its_attempt_where_all_ranks_have_a_step_in_memory(start) -> None:
    run = start(memory=True)
    run.until_running()
    ranks = ["trainer-0", "trainer-1"]
    for name in ranks:
        run.tell(name, "/hold?step=3")
    first = [run.role(name) for name in ranks]
    os.kill(first[0]["pid"], signal.SIGKILL)
    second = [run.role(name, launch=1) for name in ranks]
    assert [one["attempt"] for one in second] == [1, 1]
    told = [(one["environment"]["ECHORL_RESTARTS"], one["environment"]["ECHORL_RESTART_REASON"]) for one in second]
    assert told == [("1", "trainer-0 was ended by signal 9")] * 2
    assert not any(alive(pid) for one in first for pid in (one["pid"], *one["grandchildren"]))
    assert run.count("orchestrator-0") == 1
    run.tell("orchestrator-0", "/finish")
    run.output()
    assert run.process.returncode == 0
    assert run.state()["restarts_by_cause"] == {"trainer": 1}
    run.assert_nothing_left()


def test_the_orchestrator_and_a_rank_go_on_in_their_attempt_from_memory_when_both_are_lost(start) -> None:
    """Together, and the one while the other one's restart is under way."""
    run = start(memory=True, restart_policy={"max_restarts": 5, "backoff_s": 1.5})
    run.until_running()
    for launch in range(2):
        for name in ("trainer-0", "trainer-1"):
            run.tell(name, "/hold?step=3", launch=launch)
        orchestrator, rank = (run.role(name, launch=launch)["pid"] for name in ("orchestrator-0", "trainer-1"))
        os.kill(rank, signal.SIGKILL)
        if launch == 1:
            eventually(lambda: run.state()["restarts_by_cause"]["trainer"] == 2, "the restart is decided")
        os.kill(orchestrator, signal.SIGKILL)
        again = [run.role(name, launch=launch + 1) for name in ("trainer-0", "trainer-1", "orchestrator-0")]
        assert [one["attempt"] for one in again] == [1, 1, 1]
        run.until_running()
    run.tell("orchestrator-0", "/finish", launch=2)
    run.output()
    assert run.process.returncode == 0
    assert run.state()["restarts_by_cause"] == {"trainer": 2, "orchestrator": 2}
    run.assert_nothing_left()


def test_an_orchestrator_that_is_due_already_is_not_started_twice_for_a_rank_that_is_lost_meanwhile(start) -> None:
    """It has said why it ended, which stands until another one answers."""
    run = start(memory=True, restart_policy={"backoff_s": 3.0}, rules=[["orchestrator", [4], "Restart"]])
    run.until_running()
    for name in ("trainer-0", "trainer-1"):
        run.tell(name, "/hold?step=3")
    run.tell("orchestrator-0", "/exit?code=4&told=1")
    eventually(lambda: run.state().get("restarts_by_cause") == {"orchestrator": 1}, "its restart is decided")
    os.kill(run.role("trainer-1")["pid"], signal.SIGKILL)
    for name in ("trainer-0", "trainer-1", "orchestrator-0"):
        assert run.role(name, launch=1)["attempt"] == 1
    run.until_running()
    run.tell("orchestrator-0", "/finish", launch=1)
    run.output()
    assert run.process.returncode == 0
    assert run.state()["restarts_by_cause"] == {"orchestrator": 1, "trainer": 1}
    assert run.count("orchestrator-0") == 2


def test_an_orchestrator_that_ends_the_run_does_so_beside_a_lost_rank(start) -> None:
    run = start(memory=True)
    run.until_running()
    for name in ("trainer-0", "trainer-1"):
        run.tell(name, "/hold?step=3")
    os.kill(run.role("trainer-1")["pid"], signal.SIGKILL)
    run.tell("orchestrator-0", f"/exit?code={ExitCode.ENVIRONMENT}")
    run.output()
    assert run.process.returncode == ExitCode.ENVIRONMENT
    run.assert_nothing_left()


def test_too_many_restarts_end_the_run_with_the_reason(start) -> None:
    run = start(restart_policy={"max_restarts": 1})
    run.tell("trainer-1", "/exit?code=1")
    run.tell("trainer-1", "/exit?code=1", launch=1)
    output = run.output()
    assert run.process.returncode == 1
    assert "1 restarts of trainer are used up (failurePolicy.maxRestarts)" in output
    assert run.state()["phase"] == "Failed"
    run.assert_nothing_left()


@pytest.mark.parametrize(("role", "code"), [("trainer-1", 3), ("orchestrator-0", 4), ("inference-0", 2)])
def test_a_code_that_is_never_restarted_ends_the_run_at_once(start, role: str, code: int) -> None:
    run = start()
    run.until_running()
    run.tell(role, f"/exit?code={code}")
    output = run.output()
    assert run.process.returncode == code
    assert f"{role} ended with code {code}" in output
    assert run.state()["restarts"] == 0
    run.assert_nothing_left()


@pytest.mark.parametrize("role", ["trainer-1", "orchestrator-0", "inference-0"])
def test_a_rule_fails_the_run(start, role: str) -> None:
    run = start(rules=[[role.partition("-")[0], [17, 137], "Fail"]])
    run.until_running()
    run.tell(role, "/exit?code=17")
    output = run.output()
    assert run.process.returncode == 1
    assert f"{role} ended with code 17 (crash); a rule of failurePolicy.rules fails the run" in output
    assert run.state()["restarts"] == 0


def test_a_rule_lets_restarts_go_uncounted(start) -> None:
    run = start(restart_policy={"max_restarts": 0}, rules=[["orchestrator", [4], "Ignore"]])
    run.until_running()
    run.tell("orchestrator-0", "/exit?code=4")
    run.role("orchestrator-0", launch=1)
    run.tell("orchestrator-0", "/exit?code=4", launch=1)
    run.role("orchestrator-0", launch=2)
    run.until_running()
    run.tell("orchestrator-0", "/exit?code=5", launch=2)
    assert "orchestrator-0 ended with code 5" in run.output()
    assert run.state()["restarts_by_cause"] == {"orchestrator": 2}


def test_a_sick_engine_is_restarted(start) -> None:
    run = start(limits={"engine_unhealthy": 0.5})
    run.until_running()
    run.tell("inference-0", "/sick")
    run.role("inference-0", launch=1)
    run.tell("orchestrator-0", "/finish")
    assert "inference-0 was ended: unhealthy for" in run.output()
    assert run.process.returncode == 0


def test_an_engine_that_stays_in_quarantine_is_restarted(start) -> None:
    # The orchestrator says so of its successor too, which is restarted in its turn until the run has ended.
    run = start(restart_policy={"max_restarts": 30})
    run.until_running()
    run.tell("orchestrator-0", "/quarantine")
    run.role("inference-0", launch=1)
    run.tell("orchestrator-0", "/finish")
    assert "inference-0 was ended: quarantined for" in run.output()
    assert run.process.returncode == 0


def test_a_sick_rank_restarts_the_gang(start) -> None:
    run = start(limits={"unhealthy": 3.0})
    run.until_running()
    run.tell("trainer-1", "/sick")
    assert run.role("trainer-0", launch=1)["attempt"] == 2
    run.tell("orchestrator-0", "/finish", launch=1)
    run.output()
    assert run.process.returncode == 0


def test_a_run_that_makes_no_step_gets_a_new_attempt(start) -> None:
    # The second attempt makes no step either, and is to be told of the end before that is held against it.
    run = start(limits={"no_step": 10.0})
    assert run.role("trainer-0", launch=1)["attempt"] == 2
    run.tell("orchestrator-0", "/finish", launch=1)
    assert "stallPolicy.noStepFor" in run.output()


def test_ctrl_c_once_stops_after_a_checkpoint(start) -> None:
    run = start()
    run.until_running()
    run.process.send_signal(signal.SIGINT)
    output = run.output()
    assert run.process.returncode == 7
    assert "saving a last checkpoint" in output
    assert run.state()["phase"] == "Suspended"
    run.assert_nothing_left()


def test_the_end_of_a_terminal_stops_after_a_checkpoint(start) -> None:
    run = start()
    run.until_running()
    run.process.send_signal(signal.SIGHUP)
    output = run.output()
    assert run.process.returncode == 7
    assert "SIGHUP: saving a last checkpoint" in output
    run.assert_nothing_left()


def test_a_reader_that_leaves_does_not_end_the_run(start, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run = start(output=pipe)
    polled = select.poll()
    polled.register(reader, select.POLLIN)
    eventually(lambda: polled.poll(100) and os.read(reader, 1), "a first word")
    os.close(reader)
    run.until_running()
    run.tell("inference-0", "/exit?code=1")
    run.role("inference-0", launch=1)
    run.tell("orchestrator-0", "/finish")
    assert run.process.ended(120) == 0
    assert run.state()["phase"] == "Succeeded"
    pipe.unlink()
    pipe.touch()  # what the fixture reads
    run.assert_nothing_left()


def test_a_full_disk_does_not_end_the_supervisor(start, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kib=256) as disk:
        run = start(root=disk.root / "run")
        run.until_running()
        disk.fill()
        os.kill(run.role("orchestrator-0")["pid"], signal.SIGKILL)
        eventually(lambda: "No space left on device" in run.printed(), "it is told")
        run.process.send_signal(signal.SIGTERM)
        output = run.output()
        assert "Traceback" not in output
        assert run.state()["phase"] in ("Suspended", "Failed")
        assert run.state()["exit_code"] == run.process.returncode
        disk.empty()
        run.assert_nothing_left()


def test_a_folder_that_is_removed_ends_the_run_and_does_not_come_back(start) -> None:
    run = start()
    run.until_running()
    pids = run.every_pid()
    shutil.rmtree(run.root)
    output = run.output()
    assert f"{run.root}: the run's folder was removed or replaced while it went on" in output
    assert run.process.returncode == 1
    assert not run.root.exists()
    eventually(lambda: not any(alive(pid) for pid in pids), f"the end of all of {pids}", 60)


def test_ctrl_c_twice_stops_at_once(start) -> None:
    run = start()
    run.until_running()
    os.kill(run.role("orchestrator-0")["pid"], signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    eventually(lambda: '"signal"' in (run.root / "events.jsonl").read_text(), "the first signal was seen")
    run.process.send_signal(signal.SIGINT)
    output = run.output()
    assert run.process.returncode == 128 + signal.SIGINT
    assert "without a last checkpoint" in output
    run.assert_nothing_left()


def test_a_rank_that_dies_while_stopping_is_not_restarted(start) -> None:
    run = start()
    run.until_running()
    os.kill(run.role("orchestrator-0")["pid"], signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    eventually(lambda: '"signal"' in (run.root / "events.jsonl").read_text(), "the signal was seen")
    os.kill(run.role("trainer-0")["pid"], signal.SIGKILL)
    run.output()
    assert run.process.returncode == 128 + signal.SIGTERM
    assert run.count("trainer-0") == 1
    run.assert_nothing_left()


def test_a_killed_supervisor_leaves_nothing_and_the_same_command_resumes(start) -> None:
    run = start(engines=2)
    run.until_running()
    for name in ("inference-0", "inference-1", "trainer-0", "trainer-1", "orchestrator-0"):
        run.role(name)
    uid = run.state()["uid"]
    run.process.kill()
    run.assert_nothing_left()
    run.output()
    again = start(engines=2)
    eventually(lambda: again.state().get("attempt") == 2 and again.state()["phase"] == "Running", "attempt 2")
    assert again.state()["uid"] == uid
    again.tell("orchestrator-0", "/finish", launch=1)
    again.output()
    assert again.process.returncode == 0
    assert again.state()["restarts_by_cause"] == {"supervisor": 1}


@pytest.mark.parametrize("point", ["attempt_begun", "prepared", "half_started"])
def test_a_supervisor_killed_while_it_begins_an_attempt_leaves_nothing_and_is_made_good(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("ECHORL_FAULTS", f"supervisor.{point}!{tmp_path / 'happened'}")
    run = start()
    run.output()
    assert run.process.returncode == -signal.SIGKILL
    eventually(lambda: not any(alive(pid) for pid in run.every_pid()), "the end of what was started", 60)
    again = start()
    eventually(lambda: again.state().get("attempt") == 2 and again.state()["phase"] == "Running", "attempt 2")
    again.tell("orchestrator-0", "/finish", launch=len(again.all_of("orchestrator-0")) - 1)
    again.output()
    assert again.process.returncode == 0
    again.assert_nothing_left()


def test_a_supervisor_killed_with_its_keeper_leaves_what_the_next_one_ends(start) -> None:
    run = start()
    run.until_running()
    engine = run.role("inference-0")
    eventually(lambda: set(engine["grandchildren"]) <= noted(run.root), "grandchildren are noted")
    [keeper] = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_keeper_of(int(entry.name), run.process.pid)
    ]
    run.process.send_signal(signal.SIGSTOP)  # or it would start another keeper
    os.kill(keeper, signal.SIGKILL)
    run.process.kill()
    run.output()
    eventually(lambda: not alive(engine["pid"]), "the kernel ends the child")
    assert all(alive(pid) for pid in engine["grandchildren"])
    again = start()
    assert again.role("orchestrator-0", launch=1)["attempt"] == 2
    assert not any(alive(pid) for pid in engine["grandchildren"])
    again.tell("orchestrator-0", "/finish", launch=1)
    output = again.output()
    assert str(engine["grandchildren"][0]) in output
    assert again.process.returncode == 0


def test_a_copy_of_a_living_runs_folder_ends_nothing_of_the_original(start, tmp_path: Path) -> None:
    run = start()
    run.until_running()
    engine = run.role("inference-0")
    eventually(lambda: set(engine["grandchildren"]) <= noted(run.root), "grandchildren are noted")
    pids = run.every_pid()
    # Files that are being written when the copy is taken are gone a moment later.
    left = shutil.ignore_patterns("roles", f"{TEMPORARY_PREFIX}*")
    shutil.copytree(run.root, tmp_path / "copy", symlinks=True, ignore=left)
    copy = start(root=tmp_path / "copy")
    copy.until_running()
    assert all(alive(pid) for pid in pids)
    for one in (copy, run):
        one.tell("orchestrator-0", "/finish")
        assert f"copied from {run.root}" in one.output() or one is run
        assert one.process.returncode == 0
        assert one.state()["restarts_by_cause"] == ({} if one is run else {"supervisor": 1})


def test_a_folder_in_the_place_of_the_newest_logs_stays(start) -> None:
    run = start()
    run.until_running()
    run.tell("orchestrator-0", "/finish")
    run.output()
    latest = run.root / "logs" / "latest"
    latest.unlink()
    latest.mkdir()
    again = start()
    again.tell("orchestrator-0", "/finish", launch=1)
    again.output()
    assert again.process.returncode == 0
    assert latest.is_dir()
    assert not latest.is_symlink()


def noted(root: Path) -> set[int]:
    """The processes that a supervisor has noted for its successor."""
    return {int(pid) for pid in json.loads((root / ".processes.json").read_text())["processes"]}


def _is_keeper_of(pid: int, supervisor: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == supervisor and b"echorl_cli.local.keeper" in command


@pytest.mark.parametrize("removed", [False, True], ids=["locked", "lock removed"])
def test_a_second_supervisor_ends_nothing_and_is_refused_by_name(start, removed: bool) -> None:
    run = start()
    run.until_running()
    if removed:
        (run.root / ".lock").unlink()
    second = start()
    assert f"another `echorl run` (pid {run.process.pid}) works in this directory" in second.output()
    assert second.process.returncode != 0
    run.tell("orchestrator-0", "/finish")
    run.output()
    assert run.process.returncode == 0


def test_a_dead_keeper_is_replaced(start) -> None:
    run = start()
    run.until_running()
    keepers = lambda: [  # noqa: E731
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_keeper_of(int(entry.name), run.process.pid)
    ]
    [keeper] = keepers()
    os.kill(keeper, signal.SIGKILL)
    # One look: of two the second one may find neither, and the run would be killed before it has another one.
    eventually(lambda: set(keepers()) - {keeper}, "a new keeper")
    run.process.kill()
    run.assert_nothing_left()
