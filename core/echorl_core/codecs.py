"""Names of the codecs between messages and tokens: what ``model.renderer`` may say."""

from typing import Literal

CodecName = Literal[
    "auto",
    "engine",
    "compact",
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "gpt-oss",
    "hy3",
    "inkling",
    "kimi-k2",
    "kimi-k2.5",
    "laguna-m.1",
    "laguna-s-2.1",
    "laguna-xs-2.1",
    "laguna-xs.2",
    "llama-3",
    "minimax-m2",
    "nemotron-3",
    "nemotron-3-ultra",
    "nemotron-3.5",
    "prime-qwen3",
    "qwen3",
    "qwen3-vl",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
]
"""``auto``, ``engine`` and ``compact`` are our own; the others are families of the package ``renderers``."""
