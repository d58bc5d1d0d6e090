from pathlib import Path

import numpy as np
import pytest

from echorl_core.config import ModelConfig
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.compact import CompactCodec, read_call, write_call
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.failures import BadInputError
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

TOOLS = [
    {"type": "function", "function": {"name": "grep", "parameters": {"properties": {"pattern": {"type": "string"}}}}},
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {"properties": {"path": {"type": "string"}, "count": {"type": "integer"}, "text": {}}},
        },
    },
]
PROMPT = [{"role": "user", "content": "port?"}]
OBSERVATION = [{"role": "tool", "name": "grep", "content": "etc/a"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("model")), name="bytes")


@pytest.fixture(scope="module")
def codec(tokenizer: TextTokenizer) -> CompactCodec:
    return CompactCodec(tokenizer)


def test_prompt_action_and_observation_read_as_documented(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    prompt = codec.render(PROMPT, TOOLS, {})
    assert tokenizer.decode(prompt.ids) == "<|im_start|>user\nport?<|im_end|>\n<|im_start|>assistant\n"
    call = {"function": {"name": "grep", "arguments": {"pattern": "port"}}}
    action = codec.action_ids({"role": "assistant", "content": "", "tool_calls": [call]}, TOOLS)
    assert tokenizer.decode(action) == "<tool_call>grep port</tool_call><|im_end|>"
    assert len(action) == 12
    observed = codec.extend(prompt.ids, action, OBSERVATION, TOOLS, {})
    assert observed is not None
    assert tokenizer.decode(observed.ids) == (
        "\n<|im_start|>user\n<tool_response>etc/a</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_only_bodies_are_bodies(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    messages = [{"role": "system", "content": "be brief"}, *PROMPT]
    prompt = codec.render(messages, TOOLS, {})
    bodies = [tokenizer.decode(np.array(prompt.ids)[prompt.body & (prompt.message == index)]) for index in (0, 1)]
    assert bodies == ["be brief", "port?"]
    assert not prompt.body[prompt.message == -1].any()


def test_truncation_is_closed_by_context(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    cut = tokenizer.encode("<tool_call>gre")
    observed = codec.extend([], cut, OBSERVATION, TOOLS, {})
    assert observed is not None
    assert tokenizer.decode(observed.ids).startswith("<|im_end|>\n<|im_start|>user")
    assert not observed.body[0]
    assert observed.message[0] == -1


def test_results_in_a_row_share_a_turn(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    observed = codec.extend([], codec.stop_ids[:1], [*OBSERVATION, {"role": "tool", "content": "b"}], TOOLS, {})
    assert observed is not None
    assert tokenizer.decode(observed.ids) == (
        "\n<|im_start|>user\n<tool_response>etc/a</tool_response><tool_response>b</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_markers_in_a_body_stay_text(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    body = "a<|im_end|>b</tool_response><|im_start|>"
    observed = codec.extend([], codec.stop_ids[:1], [{"role": "tool", "content": body}], TOOLS, {})
    assert observed is not None
    ids = np.array(observed.ids)[observed.body]
    assert ids.max() < 256
    assert tokenizer.decode(ids) == body


def test_warning_spans_mark_their_tokens_alone(codec: CompactCodec, tokenizer: TextTokenizer) -> None:
    observed = codec.extend(
        [], codec.stop_ids[:1], [{"role": "tool", "content": "é text [cut]"}], TOOLS, {0: [(7, 12)]}
    )
    assert observed is not None
    assert tokenizer.decode(np.array(observed.ids)[observed.warning]) == "[cut]"


@pytest.mark.parametrize(
    ("said", "calls", "text", "malformed"),
    [
        ("<tool_call>grep a b</tool_call><|im_end|>", [("grep", {"pattern": "a b"})], "", False),
        ("<tool_call>grep</tool_call><|im_end|>", [("grep", {})], "", False),
        (
            "hm <tool_call>write p 3 x y</tool_call>",
            [("write", {"path": "p", "count": 3, "text": "x y"})],
            "hm ",
            False,
        ),
        ("<tool_call>write p many</tool_call>", [("write", {"path": "p", "count": "many"})], "", False),
        ("<tool_call>dance fast</tool_call><|im_end|>", [("dance", {"input": "fast"})], "", False),
        ("<tool_call>grep a<|im_end|>", [], "", True),
        ("grep a</tool_call><|im_end|>", [], "grep a", True),
        ("<tool_call>gr<tool_call>grep a</tool_call>", [("grep", {"pattern": "a"})], "", True),
        ("no call<|endoftext|>", [], "no call", False),
    ],
)
def test_completions_are_read(
    codec: CompactCodec, tokenizer: TextTokenizer, said: str, calls: list, text: str, malformed: bool
) -> None:
    parsed = codec.parse([], tokenizer.encode(said), TOOLS)
    assert [(call["name"], call["arguments"]) for call in parsed.tool_calls] == calls
    assert (parsed.text, parsed.malformed) == (text, malformed)


def test_a_call_survives_writing_and_reading() -> None:
    call = {"name": "write", "arguments": {"path": "p", "count": 3, "text": "x y"}}
    assert read_call(write_call(call, TOOLS), TOOLS) == call


def test_a_tokenizer_without_the_markers_is_refused(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<tool_call>", "<call>"))
    with pytest.raises(BadInputError, match=r"'compact' needs the tokens <tool_call> in"):
        CompactCodec(TextTokenizer(folder, name="x"))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"no tokenizer\.json"):
        build_codec(ModelConfig(path=str(tmp_path), dtype="float32", max_model_len=8, renderer="compact"))
