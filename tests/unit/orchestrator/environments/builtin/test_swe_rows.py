"""Rows of other people's data sets, and what is said of those that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.swe import diffs
from echorl_orchestrator.environments.builtin.parts.swe.formats import Defaults, RowError, read_row
from echorl_orchestrator.environments.builtin.parts.swe.reading import read_data_set
from echorl_orchestrator.environments.builtin.parts.swe.row import CommandGrader, SuiteGrader
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.failures import BadInputError

TEST_A = "tests/test_a.py"
DIFF = f"diff --git a/{TEST_A} b/{TEST_A}\n--- a/{TEST_A}\n+++ b/{TEST_A}\n@@ -1 +1 @@\n-1\n+2\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SWE_BENCH = {
    "instance_id": "org__repo-1",
    "repo": "org/repo",
    "base_commit": COMMIT,
    "problem_statement": "It is broken.",
    "image": "images/org__repo-1",
    "patch": DIFF,
    "test_patch": DIFF,
    "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
    "PASS_TO_PASS": ["tests/test_a.py::test_y[1]", "tests/test_b.py::T::test_z"],
}
GYM = {
    "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "It is broken."}],
    "label": "gym-7",
    "metadata": {
        "remote_env_info": {
            "image_url": "images/gym-7",
            "workdir": "/repo/",
            "pre_commands": "git checkout main\\nmake",
            "f2p_script": "import pytest, sys\nsys.exit(pytest.main())\n",
        }
    },
}


def row(found: Any, **defaults: Any) -> Any:
    return read_row(found, Defaults(**defaults), number=3)


def test_a_row_of_swe_bench() -> None:
    read = row(SWE_BENCH, python="/env/bin/python")
    assert (read.key, read.image, read.workdir) == ("org__repo-1", "images/org__repo-1", "/testbed")
    assert (read.statement, read.base_commit, read.gold) == ("It is broken.", COMMIT, DIFF.encode())
    assert read.grader == SuiteGrader(
        "pytest",
        ("tests/test_a.py", "tests/test_b.py"),
        ("tests/test_a.py::test_x",),
        ("tests/test_a.py::test_y[1]", "tests/test_b.py::T::test_z"),
        DIFF.encode(),
        "/env/bin/python",
    )


def test_a_row_of_swe_gym_says_its_place_and_words_further_in() -> None:
    read = row(GYM)
    assert (read.key, read.image, read.workdir, read.statement) == ("gym-7", "images/gym-7", "/repo", "It is broken.")
    assert read.setup == ("git checkout main\nmake",)
    assert isinstance(read.grader, CommandGrader)
    assert read.grader.suite
    assert list(read.test_files) == [read.grader.command.split()[1]]


def test_an_evaluation_command_comes_before_lists_of_tests() -> None:
    metadata = {**SWE_BENCH, "eval_cmd": "make check", "workdir": "/src"}
    read = row({"metadata": metadata, "instance_id": "outer"})
    assert read.key == "org__repo-1"
    assert read.grader == CommandGrader("make check")
    assert row({**SWE_BENCH, "eval_cmd": "python -m pytest -q"}).grader.suite


def test_images_may_come_from_a_pattern() -> None:
    bare = {name: value for name, value in SWE_BENCH.items() if name != "image"}
    assert row(bare, image="swebench/sweb.eval.{docker_id}:v1").image == "swebench/sweb.eval.org_1776_repo-1:v1"
    assert row(bare, image="/images/{instance_id}.tar").image == "/images/org__repo-1.tar"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"image": None}, "image: found nothing, accepted is an image, here or as args.image"),
        ({"problem_statement": " "}, "problem_statement: found nothing"),
        (
            {"problem_statement": "x" * (10 << 20)},
            r"problem_statement: found 10485760 bytes, accepted is at most 262144",
        ),
        ({"problem_statement": 7}, "problem_statement: found int, accepted is a text"),
        ({"problem_statement": "\ud800"}, "problem_statement: found half a surrogate pair"),
        ({"FAIL_TO_PASS": []}, "tests: found no grader, accepted is eval_cmd, f2p_script"),
        ({"FAIL_TO_PASS": "[broken"}, r"FAIL_TO_PASS: found '\[broken', accepted is a list of test ids"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS: found a list, accepted is a list of test ids"),
        ({"FAIL_TO_PASS": ["test_x (app.Tests)"]}, r"'test_x \(app.Tests\)', accepted is ids of pytest"),
        ({"FAIL_TO_PASS": ["../up/test_a.py::t"]}, "accepted is ids of pytest"),
        ({"test_patch": "not a diff"}, "test_patch: found 'not a diff', accepted is a unified diff"),
        ({"patch": {"a": 1}}, "patch: found an object, accepted is a text"),
        ({"base_commit": "main"}, "base_commit: found 'main', accepted is a commit's hexadecimal name"),
        ({"workdir": "/"}, "workdir: found '/'"),
        ({"workdir": "repo"}, "workdir: found 'repo', accepted is the absolute path"),
        ({"workdir": "/tmp/echorl/x"}, "workdir: found"),
        ({"pre_commands": {"a": 1}}, "pre_commands: found an object, accepted is a text, or a list of texts"),
        ({"files": {"../x": ""}}, r"files: found '../x', accepted is paths without '..'"),
        ({"instance_id": "k" * 300}, "instance_id: found 300 bytes, accepted is at most 255"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_by_field(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        row({**SWE_BENCH, **changed})


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in rows))
    return path


def test_bad_rows_are_refused_by_line_and_none_is_played(tmp_path: Path) -> None:
    bare = {**SWE_BENCH, "instance_id": "bare", "image": ""}
    path = written(tmp_path / "rows.jsonl", SWE_BENCH, "{broken\n", "\n", bare, SWE_BENCH, [])
    with pytest.raises(BadInputError) as refused:
        load_environment("mine", "builtin:swe", {"data": str(path)})
    told = str(refused.value).splitlines()
    assert [line.split(": ")[0].rpartition(":")[2] for line in told] == ["2", "4", "5", "6"]
    assert "row: found no JSON" in told[0]
    assert "image: found nothing" in told[1]
    assert f"'org__repo-1', accepted is another one: {path}:1 has it already" in told[2]
    assert "row: found a list, accepted is an object" in told[3]


def test_excluded_rows_may_be_as_bad_as_they_like(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", SWE_BENCH, {**SWE_BENCH, "instance_id": "bad", "image": ""})
    (tmp_path / "drops").write_text("bad\n\n")
    environment = load_environment("mine", "builtin:swe", {"data": str(path), "exclude": str(tmp_path / "drops")})
    assert [task["key"] for task in environment.tasks] == ["org__repo-1"]
    # What orchestrators, records and filters see of a row has neither tests nor fix.
    assert set(environment.tasks[0]) == {"key", "statement"}


def test_a_line_of_any_length_is_refused_and_the_next_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echorl_orchestrator.environments.builtin.parts.swe.reading.LONGEST_LINE_BYTES", 2048)
    long = {**SWE_BENCH, "instance_id": "long", "hints_text": "x" * 9000}
    found = read_data_set(written(tmp_path / "rows.jsonl", long, SWE_BENCH), Defaults())
    assert [read.key for read in found.rows] == ["org__repo-1"]
    assert found.refused == [f"{tmp_path}/rows.jsonl:1: row: found a longer line, accepted is at most 2048 bytes"]


def folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        place = path / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return path


def test_a_folder_of_tasks(tmp_path: Path) -> None:
    folder(
        tmp_path / "one",
        instruction_dot_md="Make it so.",
        task_dot_toml='[environment]\nimage = "host"\nworkdir = "/app"\nsetup = ["touch x"]\n',
        files__a__b_dot_py="1\n",
        tests__test_dot_sh="pytest /tests/test_it.py\n",
        tests__test_it_dot_py="def test(): pass\n",
        solution__solve_dot_sh="echo 2 > a/b.py\n",
    )
    folder(tmp_path / "two", instruction_dot_md="No tests.", task_dot_toml='image = "host"\n')
    folder(tmp_path / "three", task_dot_toml="image = [\n")
    folder(tmp_path / "five", task_dot_toml="image = " + "[" * 5000)
    folder(tmp_path / "six", task_dot_toml="image = " + "9" * 5000)
    (tmp_path / "four" / "files").mkdir(parents=True)
    (tmp_path / "four" / "files" / "out").symlink_to("/etc")
    found = read_data_set(tmp_path, Defaults())
    (one,) = found.rows
    assert (one.key, one.image, one.workdir, one.setup) == ("one", "host", "/app", ("touch x",))
    assert one.files == {"a/b.py": b"1\n"}
    assert set(one.test_files) == {"/tests/test.sh", "/tests/test_it.py"}
    assert isinstance(one.grader, CommandGrader)
    assert (one.grader.suite, one.grader.reward_file) == (True, "/logs/verifier/reward.txt")
    assert one.solution == "echo 2 > a/b.py\n"
    assert [line.rpartition("/")[2].split(" (")[0].split(", ")[0] for line in found.refused] == [
        "five: task.toml: found maximum recursion depth exceeded",
        "out: found a link",
        "six: task.toml: found Exceeds the limit",
        "three: task.toml: found Invalid value",
        "two: tests: found no grader",
    ]


@pytest.mark.parametrize(
    ("diff", "paths"),
    [
        (DIFF, ["tests/test_a.py"]),
        ("--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-1\n+2\n", ["x.py", "y.py"]),
        ("--- /dev/null\t1970\n+++ new file.py\t1970\n@@ -0,0 +1 @@\n+2\n", ["new file.py"]),
        ("diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n", ["old", "new"]),
        ('diff --git "a/t\\303\\244\\"b" "b/t\\303\\244\\"b"\nold mode 100644\nnew mode 100755\n', ['tä"b']),
        ("diff --git a/a b/c.bin b/a b/c.bin\nBinary files differ\n", ["a", "c.bin b/a b/c.bin"]),
        ("nothing", []),
    ],
)
def test_paths_of_a_diff(diff: str, paths: list[str]) -> None:
    assert diffs.paths(diff.encode()) == paths
