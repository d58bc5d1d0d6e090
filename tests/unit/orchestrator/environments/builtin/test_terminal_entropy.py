"""The analytic surprisal against counting: all trees of a small universe, one by one."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from echorl_orchestrator.environments.builtin.parts.terminal_entropy import observation_entropy_nats
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs
from echorl_orchestrator.environments.builtin.parts.terminal_world import TerminalEnv
from echorl_orchestrator.types import Action

ARGS = TerminalArgs(
    directories=["d", "e", "f"],
    dirs=2,
    file_names=["a", "b", "c"],
    files=2,
    keys=["k", "l", "m", "n", "o"],
    words=["x", "y"],
)
QUESTION = "k"


def trees() -> list[dict[str, str]]:
    """Every tree that has the key that is asked for; all are equally likely."""
    made = []
    for folders in itertools.combinations(ARGS.directories, 2):
        for names in itertools.product(itertools.combinations(ARGS.file_names, 2), repeat=2):
            paths = [f"{folder}/{name}" for folder, own in zip(folders, names, strict=True) for name in own]
            for keys in itertools.permutations(ARGS.keys, 4):
                if QUESTION in keys:
                    # Words are drawn freely and independently, so one of them stands for all, log 2 apart.
                    made.append({path: f"{key}=x" for path, key in zip(paths, keys, strict=True)})
    return made


def answers(tree: dict[str, str], commands: list[tuple[str, dict[str, str]]]) -> list[str]:
    env = TerminalEnv(ARGS)
    env.reset({"files": tree, "question": QUESTION, "answer": "x"}, seed=0, episode_id="e")
    return [env.step(Action("", [{"id": "i", "name": n, "arguments": a}])).messages[0]["content"] for n, a in commands]


def conversation(commands: list[tuple[str, dict[str, str]]], texts: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{QUESTION}?"}]
    for number, ((name, arguments), text) in enumerate(zip(commands, texts, strict=True)):
        call = {"id": str(number), "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": text})
    return messages


@pytest.mark.parametrize(
    "commands",
    [
        [("ls", {}), ("ls", {"path": "d"}), ("cat", {"path": "d/a"})],
        [("grep", {"pattern": "k"}), ("cat", {"path": "d/a"}), ("cat", {"path": "d/a"})],
        [("grep", {"pattern": "k"}), ("ls", {}), ("ls", {"path": "d"})],
        [("ls", {"path": "d"}), ("cat", {"path": "d/b"}), ("grep", {"pattern": "k"}), ("cat", {"path": "d/a"})],
        [("cat", {"path": "e/c"}), ("grep", {"pattern": "k"})],
    ],
    ids=lambda commands: " ".join(name for name, _ in commands),
)
def test_surprisal_is_minus_the_log_of_the_share_of_trees(commands: list[tuple[str, dict[str, str]]]) -> None:
    exists: Callable[[dict[str, str]], bool] = lambda tree: all(  # noqa: E731 - used twice, below
        arguments["path"] in tree if name == "cat" else any(path.startswith(arguments.get("path", "")) for path in tree)
        for name, arguments in commands
        if "path" in arguments
    )
    universe = trees()
    possible = [tree for tree in universe if exists(tree)]
    for tree in possible[::97]:
        texts = answers(tree, commands)
        nats = observation_entropy_nats(conversation(commands, texts), ARGS)
        agreeing = universe
        for number, (name, arguments) in enumerate(commands):
            # That the path exists is given, it is not part of the surprise.
            if name == "cat":
                agreeing = [other for other in agreeing if arguments["path"] in other]
            elif arguments.get("path"):
                agreeing = [other for other in agreeing if any(path.startswith(arguments["path"]) for path in other)]
            after = [other for other in agreeing if answers(other, commands[: number + 1])[number] == texts[number]]
            first_look = name == "cat" and commands.index((name, arguments)) == number
            expected = -math.log(len(after) / len(agreeing)) + (math.log(2) if first_look else 0.0)
            assert nats[number] == pytest.approx(expected, abs=1e-9), (tree, number)
            agreeing = after


def test_the_defaults_in_numbers() -> None:
    commands = [("grep", {"pattern": "port"}), ("cat", {"path": "etc/a"})]
    messages = conversation(commands, ["etc/a", "# etc/a\nport=fern"])
    messages[0]["content"] = "port?"
    assert observation_entropy_nats(messages, TerminalArgs()) == pytest.approx([math.log(24), math.log(16)])


def test_what_cannot_be_valued_is_refused() -> None:
    with pytest.raises(ValueError, match="only what the scripts do"):
        observation_entropy_nats(conversation([("cat", {"path": "d/a"})], ["cat: d/a: no such file"]), ARGS)
    with pytest.raises(ValueError, match="lines is 2"):
        observation_entropy_nats([], TerminalArgs(lines=2))
