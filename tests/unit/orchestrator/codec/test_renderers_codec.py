import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.config import ModelConfig
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.codec.renderers_codec import RenderersCodec, family_of
from echorl_orchestrator.failures import BadInputError
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}]
CHAT = [
    {"role": "system", "content": "sum"},
    {"role": "user", "content": "2 + 3"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": {"a": 2}}}],
    },
    {"role": "tool", "content": "five", "name": "add"},
]


def model(folder: Path, renderer: str) -> ModelConfig:
    return ModelConfig(path=str(folder), dtype="float32", max_model_len=512, renderer=renderer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("models") / "Qwen3-4B")


@pytest.fixture(scope="module")
def qwen3(folder: Path) -> RenderersCodec:
    codec = build_codec(model(folder, "qwen3"))
    assert isinstance(codec, RenderersCodec)
    return codec


@pytest.fixture(scope="module")
def both(folder: Path) -> list[ChatCodec]:
    return [build_codec(model(folder, renderer)) for renderer in ("qwen3", "compact")]


def body_text(codec: RenderersCodec, rendered, mask: np.ndarray) -> str:
    return codec._tokenizer.decode(np.array(rendered.ids)[mask])


def test_attribution_names_the_message_of_every_body(qwen3: RenderersCodec) -> None:
    rendered = qwen3.render(CHAT, TOOLS, {3: [(1, 3)]})
    own = [body_text(qwen3, rendered, rendered.body & (rendered.message == index)) for index in (0, 1, 3)]
    assert own == ["sum", "2 + 3", "five"]
    assert body_text(qwen3, rendered, rendered.warning) == "iv"


def test_a_call_is_read_whatever_its_spacing(qwen3: RenderersCodec) -> None:
    said = '<tool_call>\n{"name":  "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'
    parsed = qwen3.parse([], qwen3._tokenizer.encode(said), TOOLS)
    assert parsed.tool_calls == [{"name": "add", "arguments": {"a": 2}}]
    assert not parsed.malformed
    broken = qwen3.parse([], qwen3._tokenizer.encode("<tool_call>\n{add}\n</tool_call><|im_end|>"), TOOLS)
    assert broken.malformed
    assert broken.tool_calls == []


sampled_ids = st.lists(st.integers(0, 255), min_size=1, max_size=30)
texts = st.text(max_size=20)


@settings(deadline=None, max_examples=60)
@given(
    sampled=sampled_ids,
    closed=st.booleans(),
    content=texts,
    more=texts,
    system=st.none() | texts,
    span=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_extending_never_changes_what_was_sampled(
    both: list[ChatCodec],
    sampled: list[int],
    closed: bool,
    content: str,
    more: str,
    system: str | None,
    span: tuple[int, int],
) -> None:
    for codec in both:
        messages = [{"role": "user", "content": content}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        prompt = codec.render(messages, TOOLS, {})
        completion = [*sampled, codec.stop_ids[0]] if closed else sampled
        result = {"role": "tool", "content": more, "name": "add"}
        extension = codec.extend(prompt.ids, completion, [result, result], TOOLS, {1: [span]})
        assert extension is not None
        for part in (prompt, extension):
            assert len(part.ids) == len(part.message) == len(part.body) == len(part.warning)
            assert not (part.warning & ~part.body).any()
            assert set(np.unique(part.message)) <= {-1, 0, 1}
        assert (extension.ids[0] == codec.stop_ids[0]) == (not closed)
        tail_only = codec.extend(prompt.ids[-12:], completion, [result, result], TOOLS, {1: [span]})
        assert tail_only is not None
        assert tail_only.ids == extension.ids


def test_an_assistant_message_cannot_be_appended(both: list[ChatCodec]) -> None:
    for codec in both:
        assert codec.extend([1], [2, codec.stop_ids[0]], [{"role": "assistant", "content": "x"}], TOOLS, {}) is None


def test_tokens_after_a_close_are_never_dropped(qwen3: RenderersCodec) -> None:
    sampled = [5, qwen3.stop_ids[0], 6]
    assert qwen3.extend([1], sampled, [{"role": "tool", "content": "x"}], TOOLS, {}) is None


def test_auto_goes_by_the_config_then_by_the_folder(tmp_path: Path) -> None:
    renamed = write_byte_tokenizer(tmp_path / "tuned")
    (renamed / "config.json").write_text(json.dumps({"_name_or_path": "Qwen/Qwen3-8B"}))
    assert family_of(renamed) == ("qwen3", "Qwen/Qwen3-8B")
    assert family_of(write_byte_tokenizer(tmp_path / "Qwen3-14B")) == ("qwen3", "Qwen/Qwen3-14B")
    cached = write_byte_tokenizer(tmp_path / "models--meta-llama--Llama-3.2-1B-Instruct" / "snapshots" / "abc")
    assert family_of(cached) == ("llama-3", "meta-llama/Llama-3.2-1B-Instruct")
    assert isinstance(build_codec(model(renamed, "auto")), RenderersCodec)


def test_auto_asks_when_a_folder_name_fits_two_families(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"Qwen/Qwen3-0.6B or PrimeIntellect/Qwen3-0.6B; name one of"):
        family_of(write_byte_tokenizer(tmp_path / "Qwen3-0.6B"))


def test_unknown_models_and_families_list_what_is_accepted(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"model.renderer: 'auto' does not know .*'novel'.*qwen3.*'compact'"):
        build_codec(model(write_byte_tokenizer(tmp_path / "novel"), "auto"))
    for name in ("default", "mistral"):
        with pytest.raises(BadInputError, match=rf"model.renderer: found '{name}'; accepted are 'auto', .*qwen3"):
            build_codec(model(folder, name))


def test_a_family_that_does_not_fit_the_tokenizer_is_refused(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"model.renderer: 'llama-3' does not fit the tokenizer of 'Qwen3-4B'"):
        build_codec(model(folder, "llama-3"))


def test_engine_rendering_attributes_nothing(folder: Path) -> None:
    codec = build_codec(model(folder, "engine"))
    assert isinstance(codec, EngineRendering)
    assert not codec.attributed


def test_an_orchestrator_that_needs_no_family_starts_without_the_package() -> None:
    """It would double what a start takes."""
    script = "import sys; sys.modules['renderers'] = sys.modules['openai'] = None; import echorl_orchestrator.__main__"
    subprocess.run([sys.executable, "-c", script], check=True)
