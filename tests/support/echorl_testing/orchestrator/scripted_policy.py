"""A token generator that says what a script says, and configs to play episodes with it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from echorl_core.config import (
    AdvantageConfig,
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    EnvironmentConfig,
    EvalConfig,
    FilterConfig,
    ModelConfig,
    OrchestratorConfig,
    SamplingConfig,
)
from echorl_core.identity import RunIdentity
from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.failures import EpisodeError

IDENTITY = RunIdentity("run", "uid-1", 1)
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def write_byte_tokenizer(folder: Path) -> Path:
    """Write a byte-level tokenizer with chatml and tool markers to ``folder``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}')
    return folder


class ScriptedPolicy:
    """Implements TokenGenerator: ``reply`` maps the prompt's text to the completion's, which is cut at max_tokens.

    Every token's logprob is ``-(position in the whole sequence) / 1000``. ``calls`` lists what arrived. While ``gate``
    is unset calls hang; cancelled ones are counted. ``errors`` are raised first, one a call.
    """

    def __init__(self, tokenizer: Any, reply: Callable[[str], str | list[int]]) -> None:
        self._tokenizer = tokenizer
        self.say = reply
        self.calls: list[dict[str, Any]] = []
        self.returned: list[tuple[list[int], Generation]] = []
        self.errors: list[EpisodeError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.cancelled = 0
        self.released: list[str] = []
        self.version = 3
        self.routes = False
        """Whether it tells the experts of tokens: of one layer a token's place, and the number of the call."""

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
        model: str = SERVED_MODEL_NAME,
        experts_from: int | None = None,
    ) -> Generation:
        """See TokenGenerator."""
        prompt = list(prompt_ids)
        self.calls.append(
            {"episode": episode, "prompt": prompt, "sampling": sampling, "max_tokens": max_tokens, "model": model}
        )
        self.arrived.set()
        low = self.version
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.errors:
            raise self.errors.pop(0)
        said = self.say(self._tokenizer.decode(prompt))
        ids = self._tokenizer.encode(said) if isinstance(said, str) else said
        finish: Literal["stop", "length"] = "stop" if len(ids) <= max_tokens and ids[-1] in stop_ids else "length"
        ids = ids[:max_tokens]
        logprobs = [-(len(prompt) + place) / 1000 for place in range(len(ids))]
        generation = Generation(ids, logprobs, finish, low, self.version, "engine-0", "boot-1")
        if self.routes and experts_from is not None:
            places = np.arange(experts_from, len(prompt) + len(ids) - 1)
            rows = np.stack([places, np.full_like(places, len(self.returned))], axis=1)[:, None]
            generation = replace(generation, experts=rows.astype(np.uint16), experts_from=experts_from)
        self.returned.append((prompt, generation))
        return generation

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        """See TokenGenerator."""
        return [0.0] * (len(token_ids) - 1)

    def release(self, episode: str) -> None:
        """See TokenGenerator."""
        self.released.append(episode)


def orchestrator_config(
    model: Path,
    train: list[EnvironmentConfig],
    *,
    evals: list[EnvironmentConfig] | None = None,
    renderer: str = "compact",
    max_model_len: int = 512,
    port: int = 0,
    python_path: list[str] | None = None,
    max_branches: int = 8,
    advantage: AdvantageConfig | None = None,
    filters: Sequence[FilterConfig] = (),
) -> OrchestratorConfig:
    """A config whose parts around the episodes do not matter."""
    return OrchestratorConfig(
        run_dir="unused",
        port=port,
        model=ModelConfig(path=str(model), dtype="float32", max_model_len=max_model_len, renderer=renderer),
        seed=1,
        max_steps=1,
        batch=BatchConfig(
            group_size=2,
            batch_size=2,
            max_staleness=1,
            seq_len=512,
            num_ranks=1,
            max_branches=max_branches,
            advantage=advantage or AdvantageConfig(),
            filters=list(filters),
        ),
        train=train,
        evals=[EvalConfig(environment=one, interval=1, num_examples=1, group_size=1) for one in evals or []],
        engines=EngineDiscovery(names=["127.0.0.1:1"]),
        weight_mode="http",
        checkpoint=CheckpointConfig(interval=1, keep_last=1),
        python_path=python_path or [],
    )
