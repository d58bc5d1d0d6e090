"""``echorl environments check`` on data sets good and bad, with real sandboxes."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, seeded_rows
from echorl_orchestrator.environments.loader import load_environment
from echorl_testing.sandboxes.swe_rows import FIX, GOLD, SOURCE
from echorl_testing.warm import Program

TEST = "import calc\nassert calc.add(2, 3) == 5\n"
GOOD: dict[str, Any] = {
    "instance_id": "good",
    "image": "host",
    "workdir": "/repo",
    "statement": "calc.py: add(2, 3) is -1, want 5",
    "files": {"calc.py": SOURCE.decode()},
    "tests": {"check.py": TEST},
    "test_command": "python3 check.py",
    "patch": GOLD.decode(),
}
BAD: dict[str, dict[str, Any]] = {
    "passes-without": {"tests": {"check.py": "import calc\n"}},
    "fails-with": {"tests": {"check.py": "assert False\n"}},
    "no-gold": {"patch": None},
    "no-setup": {"setup": ["exit 9"]},
    "hangs": {"test_command": "sleep 60"},
    "no-image": {"image": None},
    "no-apply": {"patch": GOLD.decode().replace("a - b", "no such line").replace("def add(a, b)", "def other()")},
}


@dataclass
class Ended:
    """A check."""

    returncode: int
    stdout: str
    stderr: str


def checked(path: Path, *options: str) -> Ended:
    said, complained = (path.with_name(name) for name in ("stdout", "stderr"))
    for file in (said, complained):
        file.unlink(missing_ok=True)
    line = ["environments", "check", path, *options]
    code = Program("echorl_cli", line, environment=os.environ, output=said, errors=complained).ended(300)
    return Ended(code, said.read_text(), complained.read_text())


def rows(path: Path, *found: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def test_good_rows_of_either_kind_of_fix_are_ok(tmp_path: Path) -> None:
    solved = {**GOOD, "instance_id": "solved", "patch": None, "solution": FIX}
    done = checked(rows(tmp_path / "rows.jsonl", GOOD, solved), "--repeat", "2", "--drops", str(tmp_path / "drops"))
    assert sorted(done.stdout.splitlines()) == ["2 rows: 2 ok, 0 to drop, 0 unknown", "ok good", "ok solved"]
    assert (done.returncode, done.stderr, (tmp_path / "drops").read_text()) == (0, "", "")


def test_rows_that_teach_nothing_are_listed_and_left_out(tmp_path: Path) -> None:
    bad = [{**GOOD, "instance_id": key, **changed} for key, changed in BAD.items()]
    path, drops = rows(tmp_path / "rows.jsonl", GOOD, *bad), tmp_path / "drops"
    done = checked(path, "--drops", str(drops), "--args", '{"test_timeout_s": 10}')
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "8 rows: 1 ok, 7 to drop, 0 unknown"
    told = dict(line.removeprefix("drop ").split(": ", 1) for line in done.stdout.splitlines() if "drop " in line)
    assert told == {
        "passes-without": "empty patch: worth 1: exit code 0",
        "fails-with": "gold patch: worth 0: exit code 1",
        "no-gold": "gold patch: the row has neither a patch nor a solution",
        "no-setup": "setup: ended with 9",
        "hangs": "tests: ran out of time",
        f"{path}:7": "image: found nothing, accepted is an image, here or as args.image",
        "no-apply": "gold patch: worth 0: the diff does not apply",
    }
    assert sorted(drops.read_text().split()) == sorted(BAD)
    left = load_environment("mine", "builtin:swe", {"data": str(path), "exclude": str(drops)}).tasks
    assert [task["key"] for task in left] == ["good"]


def test_sandboxes_that_are_lost_say_nothing_of_a_row(tmp_path: Path) -> None:
    lost = {**GOOD, "instance_id": "lost", "image": str(tmp_path / "nowhere")}
    done = checked(rows(tmp_path / "rows.jsonl", lost, GOOD))
    assert done.returncode == 4
    assert any(line.startswith("unknown lost: image: ") for line in done.stdout.splitlines())
    assert "ok good" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "args.data: found "),
        (("--args", "[1]"), "--args: found '[1]', accepted is a JSON object"),
        (("--args", "{"), "--args: found '{'"),
        (("--resources", '{"memory": 5}'), "--resources: memory: found 5; accepted: "),
        (("--resources", '{"gpu": 1}'), "--resources: gpu: unknown key, did you mean cpu?; found "),
        (("--episode-timeout", "soon"), "--episode-timeout: found 'soon', accepted is a duration, such as 10m"),
        (("--args", '{"test_timeout_s": -1}'), "args.test_timeout_s: Input should be greater than 0"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_line(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    done = checked(tmp_path / "nowhere.jsonl", *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_where_nothing_can_be_written_is_refused_before_any_row_is_tried(tmp_path: Path) -> None:
    path, pipe = rows(tmp_path / "rows.jsonl", GOOD), tmp_path / "pipe"
    os.mkfifo(pipe)
    for drops, problem in ((pipe, "a pipe"), (tmp_path, "a folder"), (path, "which the command reads")):
        done = checked(path, "--drops", str(drops))
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
    assert checked(path, "--drops", str(tmp_path / "new" / "drops")).returncode == 0
    assert (tmp_path / "new" / "drops").read_text() == ""


def test_deadlines_and_room_are_those_of_the_run(tmp_path: Path) -> None:
    big = "python3 -c 'print(len(bytearray(300 << 20)))'"
    path = rows(tmp_path / "rows.jsonl", {**GOOD, "test_command": f"{big} && python3 check.py"})
    assert checked(path).stdout.splitlines()[0] == "ok good"
    small = checked(path, "--resources", '{"memory": "128Mi"}')
    assert small.stdout.splitlines()[0].startswith("drop good: ")
    refused = checked(path, "--args", '{"test_timeout_s": 600}', "--episode-timeout", "5m")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("args.test_timeout_s: found 600 s, accepted is less than 240 s")


def test_seeded_repositories_pass_their_own_check(tmp_path: Path) -> None:
    path = tmp_path / "seeded.jsonl"
    found = []
    for row in seeded_rows(SeededArgs(num_tasks=2, functions=3)):
        tests = {name: data.decode() for name, data in row.test_files.items()}
        files = {name: data.decode() for name, data in row.files.items() if data}
        command = "python3 -m unittest -q"
        assert row.gold is not None
        found.append(
            {**GOOD, "instance_id": row.key, "files": files, "tests": tests, "test_command": command}
            | {"patch": row.gold.decode()}
        )
    done = checked(rows(path, *found))
    assert done.returncode == 0, done.stdout
