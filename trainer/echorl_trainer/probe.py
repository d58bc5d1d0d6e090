"""The probe of a version: tokens whose logprobs trainer and engine both compute, to see that they hold the same."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

from echorl_core.config import ModelConfig
from echorl_trainer.context import row_counts
from echorl_trainer.model import PackedTokens, Policy
from echorl_trainer.parallel import Ranks

# float32 is what engine and trainer agreed to on CPU, with a margin; bfloat16 awaits its measurement on a GPU.
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
# Awaits its measurement as well. The probe's tokens are unlikely ones, whose logprobs fp8 moves most; what it is to
# find is an engine that holds something else, which is off by several nats.
FP8_PROBE_TOLERANCE = 2.0


def probe_ids(model: ModelConfig, run_uid: str, count: int) -> list[int]:
    """``count`` ordinary token ids, fixed by the run's uid: no special or added token, all below the vocabulary's size.

    Raises:
        ValueError: the tokenizer has no ordinary token.
    """
    config = json.loads((Path(model.path) / "config.json").read_text())
    vocab_size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ordinary = sorted(id_ for id_ in set(tokenizer.get_vocab().values()) - special if 0 <= id_ < vocab_size)
    if not ordinary:
        raise ValueError(f"{model.path}: the tokenizer has no ordinary token below vocab_size {vocab_size}")
    return random.Random(f"echorl probe {run_uid}").choices(ordinary, k=min(count, model.max_model_len))


def probe_logprobs(policy: Policy, ranks: Ranks, token_ids: list[int]) -> list[float]:
    """``probe_scores`` as numbers; waits for the device."""
    values: list[float] = probe_scores(policy, probe_tokens(ranks, token_ids)).tolist()
    return values


def probe_tokens(ranks: Ranks, token_ids: list[int]) -> PackedTokens:
    """One document, of which all tokens but the first are scored at temperature 1; on the device, which it waits for.

    Raises:
        ValueError: fewer than two tokens.
    """
    length = len(token_ids)
    if length < 2:
        raise ValueError(f"a probe needs at least 2 tokens, found {length}")
    everything = torch.arange(length, device=ranks.device)
    return PackedTokens(
        token_ids=torch.tensor(token_ids, device=ranks.device),
        positions=everything,
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32, device=ranks.device),
        max_len=length,
        rows=everything[1:],
        temperature=torch.ones(length, device=ranks.device),
        row_counts=row_counts(np.arange(1, length), length, ranks.context_size),
    )


@torch.no_grad()
def probe_scores(policy: Policy, probe: PackedTokens) -> Tensor:
    """Natural-log probabilities of ``probe.rows``. All ranks call this together; it launches, and waits for nothing.

    Returns:
        float64 [K] on the device.
    """
    # Between micro-batches that accumulate unsharded, weights are gathered, and stay so.
    was_sharded = isinstance(policy.model.get_input_embeddings().weight, DTensor)
    scores = policy(probe)
    if isinstance(policy, FSDPModule) and was_sharded:
        # Without a backward the root would keep its gathered weights: out of the optimizer's and checkpoints' reach.
        policy.reshard()
    found: Tensor = scores.logprobs.double()
    return found
