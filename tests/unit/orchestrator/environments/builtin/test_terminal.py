import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.terminal_policy import demonstration_tokens, demonstrations
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs, TerminalTasks, make_task
from echorl_orchestrator.environments.builtin.parts.terminal_world import TerminalEnv, tool_definitions
from echorl_orchestrator.environments.builtin.terminal import build
from echorl_orchestrator.types import Action, Step
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

ARGS = TerminalArgs()
TASK = {
    "key": "k",
    "files": {"etc/a": "port=fern", "etc/c": "host=gold", "usr/a": "mode=iris", "usr/b": "name=pine"},
    "question": "port",
    "answer": "fern",
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"id-{name}", "name": name, "arguments": arguments}


def env(args: TerminalArgs = ARGS, task: dict[str, Any] = TASK) -> TerminalEnv:
    made = TerminalEnv(args)
    made.reset(task, seed=0, episode_id="e")
    return made


def said(step: Step) -> list[str]:
    return [message["content"] for message in step.messages]


def warned(step: Step) -> list[str]:
    return [step.messages[span.message]["content"][span.start : span.end] for span in step.warnings]


def test_the_intended_way_through() -> None:
    made = TerminalEnv(ARGS)
    first = made.reset(TASK, seed=0, episode_id="e")
    assert first.messages == [{"role": "user", "content": "port?"}]
    assert [tool["function"]["name"] for tool in first.tools] == ["ls", "cat", "grep", "submit"]
    found = made.step(Action("", [call("grep", pattern="port")]))
    assert found.messages == [{"role": "tool", "tool_call_id": "id-grep", "name": "grep", "content": "etc/a"}]
    assert (found.reward, found.terminated, found.warnings) == (0.0, False, [])
    assert said(made.step(Action("", [call("cat", path="etc/a")]))) == ["# etc/a\nport=fern"]
    last = made.step(Action("", [call("submit", word="fern")]))
    assert (last.reward, last.terminated, last.messages) == (1.0, True, [])
    assert last.metrics == {"calls": 3.0, "warnings": 0.0, "submitted": 1.0}


def test_a_wrong_word_ends_without_reward() -> None:
    last = env().step(Action("", [call("submit", word="gold"), call("submit", word="fern")]))
    assert (last.reward, last.terminated) == (0.0, True)


def test_listing() -> None:
    made = env()
    assert said(made.step(Action("", [call("ls"), call("ls", path="usr"), call("ls", path="usr/")]))) == [
        "etc\nusr",
        "a\nb",
        "a\nb",
    ]


def test_what_a_command_says_is_no_warning() -> None:
    calls = [call("cat", path="etc/z"), call("ls", path="opt"), call("grep", pattern="zone")]
    step = env().step(Action("", calls))
    assert said(step) == ["cat: etc/z: no such file", "ls: opt: no such directory", "grep: zone: nothing found"]
    assert step.warnings == []


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action("", [call("dance", input="x")]), "unknown command: dance"),
        (Action("", [call("write", path="a", mode="append", text="x")]), "unknown command: write"),
        (Action("", [call("cat")]), "usage: cat path"),
        (Action("", [call("cat", path="etc/a", flag="-n")]), "usage: cat path"),
        (Action("", [call("cat", path=3)]), "cat: arguments are text"),
        (Action("", [call("submit")]), "usage: submit word"),
        (Action("hello"), "use a command"),
    ],
)
def test_what_the_harness_says_about_the_call_is_a_warning(action: Action, text: str) -> None:
    step = env().step(action)
    assert said(step) == [text]
    assert warned(step) == [text]
    assert step.metrics["warnings"] == 1.0


def test_long_output_is_cut_and_only_the_note_is_a_warning() -> None:
    args = TerminalArgs(max_bytes=16)
    step = env(args, {**TASK, "files": {"etc/a": "port=" + "é" * 40}}).step(Action("", [call("cat", path="etc/a")]))
    assert said(step) == ["# etc/a\nport=é\n[cut at 16 bytes]"]
    assert warned(step) == ["\n[cut at 16 bytes]"]


def test_writing_changes_the_tree_of_this_episode_alone() -> None:
    args = TerminalArgs(tools=["cat", "grep", "ls", "write", "submit"])
    made = env(args)
    step = made.step(
        Action(
            "",
            [
                call("write", path="tmp/n", mode="overwrite", text="one"),
                call("write", path="tmp/n", mode="append", text="two"),
                call("cat", path="tmp/n"),
                call("grep", pattern="two"),
                call("ls"),
                call("write", path="tmp", mode="append", text="x"),
                call("write", path="tmp/n", mode="erase", text="x"),
                call("write", path="tmp/n", mode="overwrite", text="x"),
                call("cat", path="tmp/n"),
            ],
        )
    )
    assert said(step) == [
        "tmp/n: 3 bytes",
        "tmp/n: 7 bytes",
        "# tmp/n\none\ntwo",
        "tmp/n",
        "etc\ntmp\nusr",
        "write: tmp: not a file's path",
        "write: erase: mode is append or overwrite",
        "tmp/n: 1 bytes",
        "# tmp/n\nx",
    ]
    assert "tmp/n" not in TASK["files"]


def test_tasks_are_seeded_distinct_and_of_the_stated_shape() -> None:
    tasks = TerminalTasks(ARGS)
    assert len({task["key"] for task in tasks}) == len(tasks) == 512
    assert list(TerminalTasks(ARGS)) == list(tasks)
    assert tasks[0] != TerminalTasks(TerminalArgs(seed=1))[0]
    for task in tasks[:50]:
        assert Counter(path.split("/")[0] for path in task["files"]).most_common(1)[0][1] == 2
        assert len(task["files"]) == 4
        pairs = dict(text.split("=") for text in task["files"].values())
        assert len(pairs) == 4
        assert pairs[task["question"]] == task["answer"]


def test_splits_are_disjoint_whatever_the_seeds() -> None:
    # Few enough tasks that each split sees most of its own.
    few = {"directories": ["x"], "dirs": 1, "files": 1, "keys": ["a", "b", "c", "d"], "words": ["p", "q", "r"]}
    train = {task["key"] for seed in range(3) for task in TerminalTasks(TerminalArgs(seed=seed, num_tasks=30, **few))}
    test = {task["key"] for task in TerminalTasks(TerminalArgs(split="test", seed=3, num_tasks=6, **few))}
    assert len(train) > 30
    assert train.isdisjoint(test)


def test_more_lines_and_other_names() -> None:
    args = TerminalArgs(
        directories=["x"], dirs=1, file_names=["f", "g"], files=2, lines=2, keys=["a", "b", "c", "d"], words=["p", "q"]
    )
    task = make_task(args, random.Random(1))
    assert sorted(task["files"]) == ["x/f", "x/g"]
    assert sorted(line.split("=")[0] for text in task["files"].values() for line in text.split("\n")) == list("abcd")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"dirs": 7}, "dirs is 7, but directories has only 6 names"),
        ({"lines": 3}, r"dirs \* files \* lines is 12, but keys has only 8 names"),
        ({"words": ["a b", "c"]}, "words must be distinct, non-empty names"),
        ({"tools": ["ls"]}, "tools must be distinct and hold 'submit'"),
        ({"colour": 1}, "Extra inputs are not permitted"),
        ({"split": "dev"}, "'train' or 'test'"),
    ],
)
def test_bad_arguments_are_named(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        build(**args)


def test_too_many_tasks_for_the_space() -> None:
    with pytest.raises(ValueError, match="num_tasks is 500, but only about"):
        build(num_tasks=500, directories=["x"], dirs=1, file_names=["f"], files=1, keys=["a"], words=["p", "q"])


def test_demonstrations_are_as_imperfect_as_said() -> None:
    played = list(demonstrations(TerminalTasks(ARGS), ARGS, seed=3, count=2000))
    share = {script: count / 2000 for script, count in Counter(one.script for one in played).items()}
    assert share == pytest.approx({"find": 0.34, "browse": 0.2, "blind": 0.16, "misread": 0.3}, abs=0.04)
    assert all(one.reward == 1.0 for one in played if one.script == "find")
    assert 0.36 < sum(one.reward for one in played) / 2000 < 0.48
    assert played[:20] == list(demonstrations(TerminalTasks(ARGS), ARGS, seed=3, count=20))


def test_demonstration_tokens_are_the_recipes_text(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path), name="bytes")
    codec = CompactCodec(tokenizer)
    (shown,) = demonstrations([TASK], ARGS, seed=0, count=1, mix={"find": 1.0})
    tokens = demonstration_tokens(codec, shown.messages, ARGS)
    assert tokenizer.decode(tokens.ids) == (
        "<|im_start|>user\nport?<|im_end|>\n<|im_start|>assistant\n"
        "<tool_call>grep port</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>etc/a</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>cat etc/a</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response># etc/a\nport=fern</tool_response><|im_end|>\n<|im_start|>assistant\n"
        "<tool_call>submit fern</tool_call><|im_end|>"
    )
    actions = [token for token, flag in zip(tokens.ids, tokens.action, strict=True) if flag]
    assert tokenizer.decode(actions) == (
        "<tool_call>grep port</tool_call><|im_end|><tool_call>cat etc/a</tool_call><|im_end|>"
        "<tool_call>submit fern</tool_call><|im_end|>"
    )
    observed = [token for token, flag in zip(tokens.ids, tokens.observation, strict=True) if flag]
    assert tokenizer.decode(observed) == "etc/a# etc/a\nport=fern"
    # What the codec reads back is what the script did.
    assert codec.parse([], actions[:12], tool_definitions(ARGS.tools)).tool_calls == [
        {"name": "grep", "arguments": {"pattern": "port"}}
    ]
