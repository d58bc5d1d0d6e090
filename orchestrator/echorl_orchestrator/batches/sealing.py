"""From chosen episodes to the files of a sealed batch: same input, same bytes.

    compose   filters, weights, denominators, layout, digest      (attempt-independent content)
    files     seal.json, orchestrator.bin, rank_<r>.bin           (what is written as one folder)

Runs in a thread: a batch may hold millions of tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from echorl_core.arrays import pack
from echorl_core.checkpoints import next_history
from echorl_core.config import BatchConfig
from echorl_core.identity import RunIdentity
from echorl_core.wire.batch import MicroBatch, RankBatch, Sample
from echorl_orchestrator.advantages.rae import BaselineState
from echorl_orchestrator.batches.loss_weights import echo_scale, weigh
from echorl_orchestrator.batches.packing import check_aligned, lay_out, micro_batch
from echorl_orchestrator.filters.rules import judge
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import DeckState

SEAL_NAME, STATE_NAME = "seal.json", "orchestrator.bin"

_HASHED = (
    "lengths",
    "token_ids",
    "role",
    "logprobs",
    "version_low",
    "version_high",
    "rl_weight",
    "ce_weight",
    "advantage",
    "temperature",
    "ref_logprobs",
)


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """The orchestrator's state as of a sealed batch; msgpack in ``orchestrator.bin`` and in checkpoints."""

    schema: int = 1
    run_uid: str
    attempt: int
    step: int
    deck: DeckState
    groups: int
    """Groups started so far; the next group's number."""
    history: str
    """Chain over the digests of batches 1..step (``checkpoints.next_history``)."""
    totals: dict[str, int]
    """Counters since the run's start: episodes, tokens, drops by reason."""
    fixed: dict[str, str] = {}
    """Settings that no later attempt may change, by their names in the manifest; empty in states of older versions."""
    baselines: BaselineState | None = None
    """Of RAE, moved by batches 1..step; None where no environment is multi-agent."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """``seal.json``: what a sealed batch is."""

    schema: int = 1
    run_uid: str
    attempt: int
    step: int
    num_ranks: int
    checkpoint: bool
    last: bool
    denominators: dict[str, float]
    digest: str
    """sha256 over what trains: equal digests train equally, whatever the attempt."""
    counts: dict[str, Any]
    """Facts for the step's record: rewards, episodes, drops, tokens, staleness."""
    sample_ids: list[str]


@dataclass(frozen=True)
class Content:
    """What a batch trains, before it is bound to a step's identity."""

    ranks: list[list[MicroBatch]]
    denominators: dict[str, float]
    digest: str
    sample_ids: list[str]
    trained_tokens: int
    trainable_episodes: int
    rl_share: float | None
    """Of the episodes that the policy gradient may train, the share that it learns from: with a trainable action token
    whose advantage is not 0, or that a teacher judged. None: there are no such episodes."""


def compose(
    episodes: Sequence[ReadyEpisode], config: BatchConfig, echo_environments: frozenset[str], *, step: int
) -> Content | None:
    """Filter, weigh and lay out batch ``step``; None when no component has anything to train.

    The episodes' verdicts are completed by the batch-stage filters.

    Raises:
        ValueError: a sample is misaligned or longer than a micro-batch may be; names it.
    """
    for episode in episodes:
        own = judge((episode.own or config).filters, "batch", episode.advantage, episode.matched)
        episode.verdict = episode.verdict.and_then(own)
        for sample in episode.outcome.samples:
            check_aligned(sample)
    samples, denominators = weigh(
        episodes, config, echo_environments, echo_scale=echo_scale(step, config.echo_warmup_steps)
    )
    if not any(denominators.values()):
        return None
    layout = lay_out([sample.num_tokens for sample in samples], config.seq_len, config.num_ranks // config.context)
    ranks = [[micro_batch([samples[index] for index in indices]) for indices in bins] for bins in layout]
    return Content(
        ranks=ranks,
        denominators=denominators,
        digest=digest(ranks, denominators),
        sample_ids=[sample.sample_id for sample in samples],
        trained_tokens=sum(int(((sample.rl_weight != 0) | (sample.ce_weight != 0)).sum()) for sample in samples),
        trainable_episodes=len({sample.episode for sample in samples}),
        rl_share=_rl_share(episodes, samples, config),
    )


def _rl_share(episodes: Sequence[ReadyEpisode], samples: Sequence[Sample], config: BatchConfig) -> float | None:
    asked = sum((episode.own or config).rl_weight > 0 for episode in episodes)
    if config.mode == "sft" or not asked:
        return None
    return len({sample.episode for sample in samples if _has_signal(sample)}) / asked


def _has_signal(sample: Sample) -> bool:
    return bool(sample.rl_weight.any()) and (sample.ref_logprobs is not None or bool(sample.advantage.any()))


def digest(ranks: Sequence[Sequence[MicroBatch]], denominators: dict[str, float]) -> str:
    """sha256 over every array of every micro-batch, where it stands, and the denominators; no names, no attempt."""
    hasher = hashlib.sha256(repr(sorted(denominators.items())).encode())
    for rank, micro_batches in enumerate(ranks):
        for number, batch in enumerate(micro_batches):
            for name in _HASHED:
                array = getattr(batch, name)
                if array is None:
                    continue
                hasher.update(f"{rank}/{number}/{name}/{array.dtype.str}/{len(array)}".encode())
                hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


@dataclass(frozen=True)
class Place:
    """Where in the run a batch stands."""

    identity: RunIdentity
    step: int
    checkpoint: bool
    last: bool


def seal_of(place: Place, content: Content, counts: dict[str, Any]) -> Seal:
    """The seal of a batch that was composed for ``place``."""
    return Seal(
        run_uid=place.identity.uid,
        attempt=place.identity.attempt,
        step=place.step,
        num_ranks=len(content.ranks),
        checkpoint=place.checkpoint,
        last=place.last,
        denominators=content.denominators,
        digest=content.digest,
        counts=counts,
        sample_ids=content.sample_ids,
    )


def files(place: Place, content: Content, seal: Seal, state: SavedState) -> dict[str, bytes]:
    """The files of a sealed batch by name."""
    written = {
        SEAL_NAME: msgspec.json.format(msgspec.json.encode(seal), indent=2),
        STATE_NAME: msgspec.msgpack.encode(state),
    }
    for rank, micro_batches in enumerate(content.ranks):
        written[rank_file(rank)] = pack(
            RankBatch(
                run_uid=place.identity.uid,
                attempt=place.identity.attempt,
                step=place.step,
                rank=rank,
                num_ranks=len(content.ranks),
                denominators=content.denominators,
                checkpoint=place.checkpoint,
                last=place.last,
                micro_batches=micro_batches,
            )
        )
    return written


def extend(state: SavedState, content: Content) -> SavedState:
    """The state with its history lengthened by this batch."""
    return msgspec.structs.replace(state, history=next_history(state.history, content.digest))


def rank_file(rank: int) -> str:
    """Name of one rank's file in a sealed batch."""
    return f"rank_{rank}.bin"


def read_state(data: bytes) -> SavedState:
    """Decode ``orchestrator.bin``.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: the bytes are no saved state.
    """
    return msgspec.msgpack.decode(data, type=SavedState)
