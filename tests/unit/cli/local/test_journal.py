import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echorl_cli.local.journal import Journal
from echorl_core.names import Phase, Role
from echorl_testing.local.small_disk import small_disk


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


def test_a_full_disk_is_told_and_made_good(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kib=64) as disk:
        journal = Journal(disk.root, "name", "uid")
        journal.enter(Phase.RUNNING, "", attempt=1)
        disk.fill()
        for number in range(200):
            journal.event("exit", process=f"trainer-{number}")
        assert "No space left on device" in str(journal.problem)
        journal.enter(Phase.FAILED, "restarts are used up")
        journal.ended(1)
        # Within the blocks that it has a file can be replaced also then.
        assert (state(disk.root)["phase"], state(disk.root)["exit_code"]) == ("Failed", 1)
        disk.empty()
        journal.save()
        assert journal.problem is None
        events = [json.loads(line) for line in (disk.root / "events.jsonl").read_text().splitlines()]
        assert [one["process"] for one in events if one["event"] == "exit"] == [f"trainer-{n}" for n in range(200)]


def test_a_folder_that_is_gone_does_not_come_back(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    journal = Journal(root, "name", "uid")
    journal.enter(Phase.RUNNING, "")
    shutil.rmtree(root)
    journal.enter(Phase.FAILED, "why")
    assert not root.exists()
    assert not journal.has_folder
    root.mkdir()
    journal.ended(1)
    assert list(root.iterdir()) == []


WRONG: list[dict] = [
    {"timeline": 7},
    {"timeline": [3]},
    {"restarts_by_cause": {"trainer": "x"}},
    {"wall_s": "long"},
    {"phase": []},
    {"created": 5},
]


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_a_state_with_wrong_types_is_begun_anew(tmp_path: Path, changes: dict) -> None:
    Journal(tmp_path, "name", "uid").enter(Phase.RUNNING, "", attempt=1)
    (tmp_path / "state.json").write_text(json.dumps({**state(tmp_path), **changes}))
    Journal(tmp_path, "name", "uid").enter(Phase.FAILED, "why")
    assert state(tmp_path)["restarts"] == 0
    assert len(state(tmp_path)["timeline"]) == 1


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
