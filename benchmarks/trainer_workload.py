"""Recorded batches for the trainer's benchmarks: seeded agent-like documents, written and read as a run's record is.

Documents have lognormal lengths and are packed end to end; each opens with a prompt, then spans of actions and of
environment output take turns. Token ids are uniform, so a seeded model gives each about 1 / vocabulary; the sampler's
logprobs are the float32 model's own plus noise, as an engine's would be.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule

from echorl_core import jsonsafe
from echorl_core.arrays import pack
from echorl_core.rundir import step_name, write_folder
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_trainer.batches import ScoredBatch, score_batch, sources_of
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks
from echorl_trainer.replay import RecordedBatches

PROMPT_SHARE, ACTION_SHARE, OUTPUT_SHARE = 0.20, 0.35, 0.45
SPAN_TOKENS = 600
"""Tokens of one action span and the output after it."""
ECHO_ALPHA = 0.05
LOW_TEMPERATURE, LOW_TEMPERATURE_SHARE = 0.7, 0.25
SAMPLER_NOISE = 0.02
"""Standard deviation, nats."""
RUN_UID = "benchmark"
ENVIRONMENTS = ("terminal", "digits")
TOKEN_COLUMNS = (
    "token_ids", "role", "logprobs", "version_low", "version_high", "rl_weight", "ce_weight", "advantage", "temperature"
)  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """Shape of one micro-batch."""

    tokens: int
    median: int
    """Of the documents' lengths, before the last is cut to fill the pack."""
    vocab_size: int
    sigma: float = 0.8


def document_lengths(mix: Mix, generator: np.random.Generator) -> list[int]:
    """Lognormal lengths that sum to ``mix.tokens``."""
    shortest = min(64, mix.tokens)
    lengths: list[int] = []
    left = mix.tokens
    while left:
        length = max(shortest, round(float(generator.lognormal(np.log(mix.median), mix.sigma))))
        length = left if left - length < shortest else length
        lengths.append(length)
        left -= length
    return lengths


def _roles(length: int) -> NDArray[np.uint8]:
    prompt = max(2, round(PROMPT_SHARE * length))
    rest = length - prompt
    turns = max(1, round(rest / SPAN_TOKENS))
    place = np.arange(rest) * turns / rest % 1.0
    action = place < ACTION_SHARE / (ACTION_SHARE + OUTPUT_SHARE)
    spans = np.where(action, TokenRole.ACTION, TokenRole.ENV_OUTPUT)
    return np.concatenate([np.full(prompt, TokenRole.CONTEXT), spans]).astype(np.uint8)


def micro_batch(mix: Mix, generator: np.random.Generator, name: str) -> MicroBatch:
    """One pack; its logprobs are still 0."""
    lengths = document_lengths(mix, generator)
    role = np.concatenate([_roles(length) for length in lengths])
    action, output = role == TokenRole.ACTION, role == TokenRole.ENV_OUTPUT
    signs = np.where(np.arange(len(lengths)) % 2 == 0, 1.0, -1.0)
    advantages = signs * np.abs(generator.normal(1.0, 0.3, len(lengths)))
    low = generator.random(len(lengths)) < LOW_TEMPERATURE_SHARE
    version = np.where(action, 0, -1).astype(np.int32)
    return MicroBatch(
        sample_ids=[f"{name}/{index}" for index in range(len(lengths))],
        environments=[ENVIRONMENTS[index % len(ENVIRONMENTS)] for index in range(len(lengths))],
        lengths=np.array(lengths, np.int32),
        token_ids=generator.integers(0, mix.vocab_size, mix.tokens).astype(np.int32),
        role=role,
        logprobs=np.zeros(mix.tokens, np.float32),
        version_low=version,
        version_high=version,
        rl_weight=action.astype(np.float32),
        ce_weight=(ECHO_ALPHA * output).astype(np.float32),
        advantage=(np.repeat(advantages, lengths) * action).astype(np.float32),
        temperature=np.repeat(np.where(low, LOW_TEMPERATURE, 1.0), lengths).astype(np.float32),
    )


def chosen_documents(micro: MicroBatch, documents: Sequence[int]) -> MicroBatch:
    """The same documents in another order, or some of them."""
    ends = np.cumsum(micro.lengths)
    columns = {
        name: np.concatenate([getattr(micro, name)[ends[d] - micro.lengths[d] : ends[d]] for d in documents])
        for name in TOKEN_COLUMNS
    }
    return MicroBatch(
        sample_ids=[micro.sample_ids[d] for d in documents],
        environments=[micro.environments[d] for d in documents],
        lengths=micro.lengths[list(documents)],
        **columns,
    )


def halved(micro: MicroBatch) -> MicroBatch:
    """The first half of every document."""
    starts = np.repeat(np.cumsum(micro.lengths) - micro.lengths, micro.lengths)
    lengths = (micro.lengths + 1) // 2
    kept = np.arange(len(micro.token_ids)) - starts < np.repeat(lengths, micro.lengths)
    columns = {name: getattr(micro, name)[kept] for name in TOKEN_COLUMNS}
    return msgspec.structs.replace(micro, lengths=lengths, **columns)


def repacked(micro: MicroBatch) -> list[MicroBatch]:
    """The documents of one pack in two packs, each in reverse order."""
    documents = list(range(len(micro.lengths)))[::-1]
    parts = [part for part in (documents[0::2], documents[1::2]) if part]
    return [chosen_documents(micro, part) for part in parts]


def scored(micro: MicroBatch, policy: Policy, ranks: Ranks) -> ScoredBatch:
    """The micro-batch on the device, as the step sees it."""
    vocab_size = int(policy.model.get_input_embeddings().num_embeddings)
    return score_batch(micro, sources=sources_of([micro]), version=0, vocab_size=vocab_size, device=ranks.device)


@torch.no_grad()
def policy_logprobs(micro: MicroBatch, policy: Policy, ranks: Ranks) -> NDArray[np.float32]:
    """Tempered logprob of every scored token, 0 elsewhere: float32 [T]."""
    batch = scored(micro, policy, ranks)
    scores = policy(batch.tokens)
    if isinstance(policy, FSDPModule):
        policy.reshard()
    found = np.zeros(len(micro.token_ids), np.float32)
    found[batch.tokens.rows.cpu().numpy()] = scores.logprobs.cpu().numpy()
    return found


def with_sampler(micro: MicroBatch, policy: Policy, ranks: Ranks, generator: np.random.Generator) -> MicroBatch:
    """The micro-batch with logprobs as an engine with slightly other arithmetic would have reported them."""
    noisy = policy_logprobs(micro, policy, ranks) + generator.normal(0.0, SAMPLER_NOISE, len(micro.token_ids))
    logprobs = np.where(micro.role == TokenRole.ACTION, np.minimum(noisy, 0.0), 0.0).astype(np.float32)
    return msgspec.structs.replace(micro, logprobs=logprobs)


def rank_batch(micro_batches: list[MicroBatch], *, echo: bool) -> RankBatch:
    """Step 1 of one rank; without ``echo`` the environment's tokens are scored, but train nothing."""
    if not echo:
        nothing = [np.zeros_like(micro.ce_weight) for micro in micro_batches]
        micro_batches = [
            msgspec.structs.replace(micro, ce_weight=zeros) for micro, zeros in zip(micro_batches, nothing, strict=True)
        ]
    denominators = {
        "rl": float(sum((micro.rl_weight != 0).sum() for micro in micro_batches)),
        "ce": float(sum((micro.ce_weight != 0).sum() for micro in micro_batches)),
    }
    return RankBatch(
        run_uid=RUN_UID,
        attempt=1,
        step=1,
        rank=0,
        num_ranks=1,
        denominators=denominators,
        checkpoint=False,
        last=False,
        micro_batches=micro_batches,
    )


def record(folder: Path, batch: RankBatch) -> int:
    """Write the batch as a recorded one; bytes."""
    data = pack(batch)
    seal = {
        "schema": 1,
        "run_uid": batch.run_uid,
        "attempt": batch.attempt,
        "step": batch.step,
        "num_ranks": batch.num_ranks,
        "checkpoint": batch.checkpoint,
        "last": batch.last,
        "denominators": batch.denominators,
        "digest": hashlib.sha256(data).hexdigest(),
        "counts": {},
        "sample_ids": [name for micro in batch.micro_batches for name in micro.sample_ids],
    }
    files = {"seal.json": jsonsafe.dumps(seal).encode(), "rank_0.bin": data}
    write_folder(folder / step_name(batch.step), files)
    return len(data)


def recorded(folder: Path) -> RankBatch:
    """Step 1 of a recording, by the source that replay trains from.

    Raises:
        FileNotFoundError: there is no recording.
    """
    batch = RecordedBatches([folder], rank=0, num_ranks=1).batch(1)
    if not isinstance(batch, RankBatch):
        raise FileNotFoundError(f"{folder}: holds no step 1")
    return batch
