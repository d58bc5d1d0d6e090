"""Seeded models load, are reproducible, and render chats as documented."""

import dataclasses

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from echorl_trainer.seeded import SHAPES, SeededShape, byte_tokenizer, write_seeded_model

SMALL = SeededShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "glm4_moe", "gemma2", "gemma3_text", "mistral"])
@pytest.mark.parametrize("tie", [False, True])
def test_folder_loads_and_predicts(tmp_path, family, tie):
    write_seeded_model(tmp_path / "m", SMALL, 0, family=family, tie=tie)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert model.config.model_type == family
    assert model.config.vocab_size == len(tokenizer) == 265
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tie
    assert model(torch.tensor([tokenizer.encode("ab")])).logits.shape == (1, 2, 265)
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" in set(file.keys())) != tie


def test_same_seed_same_bytes_and_global_random_state_untouched(tmp_path):
    before = torch.random.get_rng_state()
    for name, seed in [("a", 3), ("b", 3), ("c", 4)]:
        write_seeded_model(tmp_path / name, SMALL, seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    assert torch.equal(before, torch.random.get_rng_state())


def test_bfloat16_is_rounded_float32(tmp_path):
    write_seeded_model(tmp_path / "a", SMALL, 0)
    write_seeded_model(tmp_path / "b", SMALL, 0, dtype="bfloat16")
    full, half = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(tensor.bfloat16(), half[name]) for name, tensor in full.items())


def test_refuses_full_folder_and_small_vocabulary(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        write_seeded_model(tmp_path, SMALL, 0)
    with pytest.raises(ValueError, match="vocab_size is 100"):
        write_seeded_model(tmp_path / "m", dataclasses.replace(SMALL, vocab_size=100), 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_known_sizes():
    assert SHAPES["0.6b"].vocab_size == 151_936
    assert SHAPES["tiny"].hidden_size == 128


def test_bytes_round_trip():
    tokenizer = byte_tokenizer()
    text = "héllo\n<tool_call>\t世界</tool_call>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode()) - len("<tool_call></tool_call>") + 2
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == "<|im_end|>"


def render(messages, **options):
    return byte_tokenizer().apply_chat_template(messages, tokenize=False, **options)


def test_chat_with_tools_renders_as_chatml():
    call = {"type": "function", "function": {"name": "grep", "arguments": {"key": "port"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "port?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "a/b"},
        {"role": "tool", "content": "c/d"},
    ]
    assert render(messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nport?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "grep", "arguments": {"key": "port"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "grep", "arguments": {"key": "port"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na/b\n</tool_response>\n<tool_response>\nc/d\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with_tools = render(messages, tools=[{"type": "function", "function": {"name": "grep"}}])
    assert with_tools.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert with_tools.count("Be brief.") == 1


def test_history_is_append_only():
    messages = [{"role": "user", "content": "a"}]
    prompt = render(messages, add_generation_prompt=True)
    messages += [{"role": "assistant", "content": " b\n"}, {"role": "tool", "content": "c"}]
    assert render(messages).startswith(prompt + " b\n<|im_end|>\n")
