"""The table of agents, and rows that users add to it."""

from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.agents import AGENTS, AgentRow, Words
from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.failures import BadInputError

SEEDED = {"num_tasks": 2}


def words(row: AgentRow) -> Words:
    return Words(
        row,
        gateway="http://127.0.0.1:8080/",
        base_url="http://10.0.0.1:9000/s/KEY/v1",
        session="KEY",
        model="policy",
        statement="Fix {this}.",
        workdir="/repo",
    )


@pytest.mark.parametrize(
    ("dialect", "address"),
    [
        ("chat", "http://127.0.0.1:8080/s/KEY/v1"),
        ("responses", "http://127.0.0.1:8080/s/KEY/v1"),
        ("messages", "http://127.0.0.1:8080/s/KEY"),
    ],
)
def test_each_dialect_is_told_the_address_as_its_clients_want_it(dialect: Any, address: str) -> None:
    row = AgentRow(command=["agent", "--url={base_url}"], dialect=dialect)
    assert words(row).filled(row.command[1]) == f"--url={address}"


def test_what_a_task_says_is_never_taken_for_a_word() -> None:
    row = AgentRow(command=["agent", "{prompt}"], prompt='{text} {"json": {model}}')
    assert words(row).filled(row.command[1]) == 'Fix {this}. {"json": policy}'


def test_every_agent_of_the_table_can_be_started() -> None:
    for name, row in AGENTS.items():
        filled = [words(row).filled(text) for text in row.texts()]
        assert any("KEY" in text for text in filled), name
        assert not any("{install}" in text or "{base_url}" in text for text in filled)


def test_a_row_of_a_users_own_is_enough() -> None:
    own = {"command": ["{install}/agent"], "dialect": "messages", "environment": {"A": "{session}"}, "install": "/x"}
    args = SweArgs.model_validate({"seeded": SEEDED, "agent": own, "agent_environment": {"B": "2"}, "prompt": "go"})
    assert args.agent_row.environment == {"A": "{session}", "B": "2"}
    assert (args.agent_row.install, args.agent_row.prompt) == ("/x", "go")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"data": "/nowhere", "seeded": SEEDED}, "accepted is one of data and seeded"),
        ({"data": "/nowhere"}, "args.data: found '/nowhere', accepted is a file or folder"),
        ({"seeded": SEEDED, "agent": "aider"}, "found 'aider', accepted are scripted, claude-code, codex and a row"),
        ({"seeded": SEEDED, "agent": "codex"}, "agent_install: found nothing, accepted is a folder, tar or image"),
        ({"seeded": SEEDED, "agent": {"command": []}}, "command: found nothing, accepted is a program"),
        ({"seeded": SEEDED, "agent": {"command": ["{key}"]}}, r"found \{key\}, accepted are base_url, harness"),
        ({"seeded": SEEDED, "workdir": "x"}, "workdir: found 'x', accepted is the absolute path"),
        ({"seeded": {"num_tasks": 0}}, "seeded.num_tasks: Input should be greater than or equal to 1"),
        ({"seeded": SEEDED, "exclude": "/nowhere"}, "args.exclude: found '/nowhere', accepted is a file"),
    ],
)
def test_what_cannot_be_played_is_refused(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        load_environment("mine", "builtin:swe", args)
