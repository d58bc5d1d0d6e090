import json
import subprocess
import sys
from pathlib import Path

from echorl_cli.local.journal import Journal
from echorl_core.names import Phase, Role


def state(root: Path) -> dict:
    return json.loads((root / "state.json").read_text())


def test_phases_make_a_timeline_and_repetitions_do_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "name", "uid")
    journal.enter(Phase.PREPARING, "choosing", attempt=1)
    journal.enter(Phase.RUNNING, "")
    journal.enter(Phase.RUNNING, "")
    journal.restarted(Role.INFERENCE, "inference-0 ended")
    journal.enter(Phase.SUCCEEDED, "finished")
    journal.ended(0)
    found = state(tmp_path)
    assert [(entry["phase"], entry["attempt"]) for entry in found["timeline"]] == [
        ("Preparing", 1),
        ("Running", 1),
        ("Succeeded", 1),
    ]
    assert (found["restarts"], found["restarts_by_cause"], found["exit_code"]) == (1, {"inference": 1}, 0)
    assert found["setup_s"] >= 0
    assert found["setup_cpu_s"] > 0
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events == ["phase", "phase", "restart", "phase"]


def test_a_killed_supervisor_counts_as_a_restart_and_a_clean_stop_does_not(tmp_path: Path) -> None:
    Journal(tmp_path, "name", "uid").enter(Phase.RUNNING, "", attempt=1)
    second = Journal(tmp_path, "name", "uid")
    second.enter(Phase.SUSPENDED, "stopped", attempt=2)
    assert state(tmp_path)["restarts_by_cause"] == {"supervisor": 1}
    Journal(tmp_path, "name", "uid").save()
    assert state(tmp_path)["restarts_by_cause"] == {"supervisor": 1}
    assert len(state(tmp_path)["timeline"]) == 2


def test_another_runs_state_is_not_taken_over(tmp_path: Path) -> None:
    Journal(tmp_path, "name", "uid").restarted(Role.TRAINER, "died")
    Journal(tmp_path, "name", "other").save()
    assert state(tmp_path)["restarts"] == 0


def test_cpu_seconds_are_those_of_ended_children_and_of_earlier_supervisors(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "name", "uid")
    journal.save()
    before = state(tmp_path)["cpu_s"]
    subprocess.run([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"], check=True)
    journal.save()
    assert state(tmp_path)["cpu_s"] > before + 0.05
    ended = state(tmp_path)["cpu_s"]
    Journal(tmp_path, "name", "uid").save()
    assert state(tmp_path)["cpu_s"] >= 2 * before + (ended - before)
