"""What the model of the example swe is fitted on is what the scripted agent says and hears."""

import random
from pathlib import Path

import pytest
import yaml

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.inside import scripted_agent
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, bug_of, seeded_rows
from echorl_orchestrator.environments.builtin.parts.terminal_policy import conversation_tokens
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer
from examples.swe.model import RIGHT, TOOLS, conversation

EXAMPLE = Path(__file__).parents[5] / "examples" / "swe.yaml"
ROWS = seeded_rows(SeededArgs(num_tasks=40, functions=1))


def test_the_agent_would_have_answered_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    right = 0
    for number, row in enumerate(ROWS):
        for path, data in row.files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)
        talk = conversation(row, random.Random(number))
        assert talk[0] == {"role": "user", "content": row.statement}
        for said, heard in zip(talk[1:-1:2], talk[2:-1:2], strict=True):
            call = said["tool_calls"][0]["function"]
            assert scripted_agent.called(call["name"], call["arguments"]) == heard["content"]
        assert talk[-1]["tool_calls"][0]["function"]["name"] == "submit"
        bug = bug_of(row)
        right += (tmp_path / bug.path).read_text().splitlines()[bug.line - 1] == bug.right
    assert 0.2 < right / len(ROWS) < RIGHT + 0.25


def test_a_call_survives_the_way_through_the_codec(tmp_path: Path) -> None:
    codec = CompactCodec(TextTokenizer(write_byte_tokenizer(tmp_path / "model"), name="bytes"))
    row = next(row for row in ROWS if len(conversation(row, random.Random(1))) > 2)
    talk = conversation(row, random.Random(1))
    asked = talk[3]["tool_calls"][0]["function"]
    parsed = codec.parse([], codec.action_ids(talk[3], TOOLS), TOOLS)
    assert [(call["name"], call["arguments"]) for call in parsed.tool_calls] == [("replace", asked["arguments"])]
    longest = max(len(conversation_tokens(codec, conversation(one, random.Random(1)), TOOLS).ids) for one in ROWS)
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    sampled = spec["environments"]["train"][0]["sampling"]["maxCompletionTokens"]
    assert longest + sampled < spec["model"]["maxModelLen"]


def test_the_examples_splits_share_no_row() -> None:
    environments = yaml.safe_load(EXAMPLE.read_text())["spec"]["environments"]
    train, held = (SweArgs.model_validate(environments[kind][0]["args"]).rows() for kind in ("train", "eval"))
    assert {row.key for row in train}.isdisjoint({row.key for row in held})
