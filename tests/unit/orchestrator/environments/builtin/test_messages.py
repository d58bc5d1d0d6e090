"""Conversations from files, and those of the scripted solver."""

import json
from pathlib import Path

import pytest

from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.failures import BadInputError

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_become_tasks_in_order(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "grep"}}
    path = write(tmp_path / "talks.jsonl", {"messages": HELLO}, "\n", {"messages": HELLO, "key": "x", "tools": [tool]})
    environment = load_environment("talks", "builtin:messages", {"path": path})
    assert environment.given
    assert [environment.tasks[index]["key"] for index in range(len(environment.tasks))] == [1, "x"]
    assert environment.tasks[0]["messages"] == HELLO
    assert environment.tasks[1]["tools"] == [tool]


def test_a_relative_path_is_found_beside_the_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "talks.jsonl", {"messages": HELLO})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(load_environment("talks", "builtin:messages", {"path": "data/talks.jsonl"}).tasks) == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{broken\n", r"talks.jsonl:2: Expecting"),
        ([], "talks.jsonl:2: found list, accepted is an object"),
        ({"messages": []}, "talks.jsonl:2: messages: accepted is a list of at least one"),
        ({"message": HELLO}, "talks.jsonl:2: found 'message', accepted are messages, tools, key, reward"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"talks.jsonl:2: messages\[0\].role: found 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not supported yet: parts of type"),
        ({"messages": HELLO, "tools": ["grep"]}, "talks.jsonl:2: tools: accepted is a list"),
        ({"messages": HELLO, "reward": "good"}, "talks.jsonl:2: reward: found 'good'"),
        ({"messages": HELLO, "key": 1.5}, "talks.jsonl:2: key: found 1.5"),
        ({"messages": HELLO, "key": 1}, "talks.jsonl:2: key: found 1, which line 1 has already"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, problem: str) -> None:
    path = write(tmp_path / "talks.jsonl", {"messages": HELLO}, row)
    with pytest.raises(BadInputError, match=problem):
        load_environment("talks", "builtin:messages", {"path": path})


@pytest.mark.parametrize("path", ["/no/such/file", "no/such/file"])
def test_a_missing_file_is_named(path: str) -> None:
    with pytest.raises(BadInputError, match=f"args.path: found '{path}', accepted is a file at"):
        load_environment("talks", "builtin:messages", {"path": path})


def test_the_solver_finds_every_answer_and_is_the_same_each_time() -> None:
    def load() -> list[dict[str, object]]:
        tasks = load_environment("talks", "builtin:terminal-demonstrations", {"num_tasks": 20, "seed": 3}).tasks
        return [tasks[index] for index in range(len(tasks))]

    tasks = load()
    assert tasks == load()
    assert [task["reward"] for task in tasks] == [1.0] * 20
    assert [message["role"] for message in tasks[0]["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]  # type: ignore[attr-defined]


def test_other_scripts_fail_most_of_the_time() -> None:
    tasks = load_environment("talks", "builtin:terminal-demonstrations", {"script": "blind", "num_tasks": 50}).tasks
    assert sum(tasks[index]["reward"] for index in range(50)) < 15
